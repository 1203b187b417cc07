"""`reliable-mq demo`: a grocer's real orders, replayed through killed processes, and the proof.

Read `command` for the story, `faults` for what is done to it, `checks` for how it is judged. The
application that is put under fire is `examples/shop`; nothing in it knows that it is a demo.
"""
