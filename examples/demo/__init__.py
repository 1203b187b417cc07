"""What `reliable-mq demo` runs: real orders, replayed through killed processes, and the proof.

Read `story` for what happens, `faults` for what is done to it, `checks` for how it is judged. The
application that is put under fire is `examples/shop`; nothing in it knows that it is a demo.
"""
