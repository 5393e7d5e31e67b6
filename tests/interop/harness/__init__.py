"""What the tests share: engines written with pyzmq and msgspec, a running kvplane, and plain reference models."""
