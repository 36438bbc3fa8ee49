"""How long a step would take if something about it were different: the room for predictions.

`whatif` makes a trace into a graph of tasks, changes the graph and simulates it. `scaling` fits a step's time to the
sizes that it depends on. Nothing here measures; what a prediction assumes is in its arguments and what it is worth is
said beside it. Importing this package imports nothing heavy.
"""
