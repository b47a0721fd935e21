"""The zoo: functions of other people's libraries, differentiated at orders 2 and 3, judged and timed.

`make zoo` runs it in an environment of its own and writes docs/reference/zoo.md.
"""
