"""What an event belongs to: its step and thread, the call that launched it, its operator, module and source line.

- Times: `intervals` are sets of moments, with which times are added up without counting twice.
- Host: `nesting` finds which events of a thread are inside which, `threads` which threads work for a step and what
  waits for input. `launches` joins device events to the calls that launched them and makes the call tree of the host.
- Device: `device_record` says whether the record is whole and on the host's clock, and which transfers have no kernel;
  `communication` which events communicate, and how much of that is hidden.
- Steps: `step_list` selects the annotations that are steps and finds what looks like steps without one
  (`step_list.step_like`, `step_list.repetitions`); `steps` says when they begin and end, which of them figures are
  made of, and which step a device event is of.
- Origins: `operators` has the arguments of operators, which moments are their own, and which were recorded twice;
  `origins` the module, source line and forward operator of each event, handed down the call tree, over the autograd
  engine and to the device (`origins.inherit`).
"""
