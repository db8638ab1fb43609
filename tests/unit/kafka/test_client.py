"""A client may be left to the garbage collector, in whatever thread that runs."""

from __future__ import annotations

import subprocess
import sys

# A process of its own, for librdkafka would abort this one. The server accepts connections and answers nothing.
PROGRAM = """
import gc, socket, threading
from frazil.kafka import client

gc.disable()
server = socket.create_server(("127.0.0.1", 0))
properties = {"bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}", "log_level": 0}

class Owner:
    pass

owner = Owner()
owner.itself, owner.client = owner, client.AdminClient(properties)
answer, collected = owner.client.describe_cluster(request_timeout=0.2), threading.Event()
answer.add_done_callback(lambda _: (gc.collect(), print(len(client._left)), collected.set()))
del owner
assert collected.wait(60)
client.AdminClient(properties)
print(len(client._left))
"""


def test_a_client_that_is_collected_in_a_thread_of_its_own_is_destroyed_in_one_of_pythons():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "0"]), done.stderr
