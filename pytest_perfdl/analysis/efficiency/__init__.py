"""How close operators and kernels come to what the hardware could do at best.

`costs` has the arithmetic and the bytes of an operator by cost models, and `costs.modeled_calls` those of a trace's
operators. `roofline` compares them with measured times and with the peaks of the device (`roofline.peaks_of`), and
estimates from their launches how well kernels fill it (`roofline.sm_efficiency_est`, `roofline.occupancy_est`).
"""
