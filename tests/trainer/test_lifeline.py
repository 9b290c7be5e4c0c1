"""A peer whose connection ends is reported with its rank; a stranger is not."""

import json
import queue
import socket

from tests.trainer.fake_client import gang
from trainer.coordination import Alone
from trainer.lifeline import Lifeline

LIMIT_S = 60


def listening(lost):
    first, second = gang(2)
    Lifeline(first, host="127.0.0.1", lost=lost.put)
    return json.loads(second.get("lifeline", timeout_s=LIMIT_S))


def call(told, line):
    connection = socket.create_connection(("127.0.0.1", told["port"]), timeout=LIMIT_S)
    connection.sendall(line.encode())
    return connection


def test_rank_0_learns_which_rank_is_gone():
    lost = queue.Queue()
    told = listening(lost)
    ends = [call(told, f"{told['token']} {rank}\n") for rank in (1, 2)]
    ends[1].close()
    assert lost.get(timeout=LIMIT_S) == 2
    ends[0].close()
    assert lost.get(timeout=LIMIT_S) == 1


def test_a_stranger_is_turned_away_and_nobody_is_gone_for_it():
    lost = queue.Queue()
    told = listening(lost)
    for line in ("GET / HTTP/1.1\n", "wrong 1\n", f"{told['token']} x\n", "\n"):
        stranger = call(told, line)
        assert stranger.recv(1) == b"", "the other side has closed"
        stranger.close()
    call(told, f"{told['token']} 1\n").close()
    assert lost.get(timeout=LIMIT_S) == 1
    assert lost.empty()


def test_the_others_learn_that_rank_0_is_gone():
    lost = queue.Queue()
    first, second = gang(2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        first.put("lifeline", json.dumps({"port": server.getsockname()[1], "token": "t"}))
        Lifeline(second, host="127.0.0.1", lost=lost.put)
        connection, _ = server.accept()
        assert connection.makefile().readline() == "t 1\n"
        assert lost.empty()
        connection.close()
    assert lost.get(timeout=LIMIT_S) == 0


def test_one_process_needs_none():
    alone = Alone()
    Lifeline(alone, host="127.0.0.1", lost=lambda rank: None)
    assert alone._values == {}
