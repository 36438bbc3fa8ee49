"""Scaling: the time of a step as a function of its size.

    points = read_csv(Path("points.csv"), intrinsic=["layers"], extrinsic=["batch", "workers"])
    choice = choose(points)
    choice.explanation, choice.predict({"layers": 4, "batch": 64, "workers": 8})

- `points` holds measurements, from columns or from the records of a run (`points.points_of`).
- Forms: `laws` says what forms and curves are, with lines for one axis (`laws.AFFINE`, `laws.PIECEWISE`); `generic` is
  the published power law by global search, `physical` a sum of what the machine does, products of powers of the sizes.
- `choose.evaluate` fits a form with and without each configuration: errors and intervals. `choose.choose` takes the
  best of `choose.candidates`, predicts, and says what it means.
- `saved` keeps a choice as plain data, and has the growth of each part of a step (`saved.parts_of`). `planning` says
  what follows from a choice, `growth` (in runs, not of `choose`) how a test's curve differs from that of its baseline.
"""
