"""Asking an engine's ROUTER for what it published."""

import zmq

from .engine import END


def replay(context, endpoint, start, has_topic, delimiter=True):
    """Asks a ROUTER as vLLM's clients should: a DEALER that sends the delimiter. Returns (topics, batches)."""
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        head = [b""] if delimiter else []
        dealer.send_multipart([*head, start.to_bytes(8, "big")])
        topics, batches = set(), []
        while True:
            if not dealer.poll(500 if not delimiter else 10_000):
                assert not delimiter, "no answer"
                return None
            frames = dealer.recv_multipart()
            assert len(frames) == (4 if has_topic else 3), frames
            assert frames[0] == b""
            *topic, sequence, payload = frames[1:]
            if sequence == END:
                assert payload == b"" and topic in ([], [b""])
                return topics, batches
            topics.update(topic)
            batches.append((int.from_bytes(sequence, "big"), payload))
