"""What an event belongs to: its step and thread, the call that launched it, its operator, module and source line.

`intervals` are sets of moments, with which times are added up without counting twice. On a thread events nest
(`nesting`, `enclosing`), which makes the call tree of the host (`tree`); a device's events are joined to the calls that
launched them (`launches`), and `device_record` says whether that record is whole. `step_list` tells which annotations
are steps, `unnamed_steps` what looks like some, `steps` which of them figures are made of, and when they begin and end
(`step_times`); `device_steps` says which step a device event is of, `threads` which threads work for a step,
`operator_args` and `operator_time` what an operator was called with and which moments are its own. What is known of a
row is handed on to what runs inside it, over the autograd engine and to the device (`autograd`, `inherit`): so
`modules` and `source_lines` name the places of kernels. `communication` and `in_flight` tell which events communicate,
`doubled` which operators were recorded twice.
"""
