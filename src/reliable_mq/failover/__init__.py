"""What a broker needs to stand under Apache's controller, which elects the master of a name.

Receives bytes and answers of the controller and of the other brokers. Returns epochs, frames,
requests, and who must have a message before it is acknowledged. It elects nobody.
"""
