"""Asks the Python package's client all the time what an engine holds: `python python_client.py ADDRESS SECONDS JSON`.

Asks every SECONDS. JSON has the model and the prompts. A line of JSON for every answer, with times on the system's monotonic clock; ends when
standard input does.
"""

import json
import random
import select
import sys
import time

import kvplane


def main(address, every, model, prompts):
    choose = random.Random(2)
    with kvplane.Client(address) as client:
        assert client.wait_ready(30), client.status()
        while not select.select([sys.stdin], [], [], every)[0]:
            document = choose.randrange(len(prompts))
            asked = time.monotonic()
            matches = client.query(model, prompts[document]).matches
            answered = time.monotonic()
            best = matches[0] if matches else None
            print(
                json.dumps({
                    "asked": asked, "answered": answered, "document": document,
                    "trust": str(best.trust) if best else None,
                    "held": bool(best and best.tokens > 0),
                    "age": best.age_ms / 1000 if best and best.age_ms is not None else None,
                }),
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), **json.loads(sys.argv[3]))
