"""What is made slower, and by how much: nothing here. A trial writes this file anew in its working tree."""

EVERY = 0
"""Extra work on every n-th step; 0 for none."""
EXTRA = 0.0
"""That work as a share of the step's own time."""
TRANSFORM = 0.0
"""Share by which the loader's transform takes longer."""
OPERATOR = 0.0
"""Share by which one operator of the training step takes longer."""
