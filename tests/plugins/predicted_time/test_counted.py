"""First tokens that the server's counter shows."""

import pytest

from epp_plugins.predicted_time import CountedTokens, FleetModel, PredictedRequest


class Server:
    """A counted server and the requests that were sent there."""

    def __init__(self) -> None:
        self.model = FleetModel()
        self.counted = CountedTokens(self.model.endpoint("a"))

    def send(self, now: float) -> PredictedRequest:
        self.counted.sent()
        return self.model.sent("a", 1000.0, now)

    def report(self, request: PredictedRequest, now: float) -> None:
        self.counted.reported()
        self.model.first_token(request, now)

    def page(self, prompts: int, now: float) -> list[tuple[PredictedRequest, float]]:
        """Return the requests whose first tokens the page shows, and when they came."""
        begun: list[tuple[PredictedRequest, float]] = []

        def first_token(request: PredictedRequest, at: float) -> None:
            begun.append((request, round(at, 6)))
            self.model.first_token(request, at)

        self.counted.page(prompts, now, first_token)
        return begun


def test_the_oldest_requests_have_had_their_first_tokens() -> None:
    server = Server()
    server.page(10, 0.0)
    first, second, _ = (server.send(0.1 * number) for number in range(3))
    assert server.page(10, 1.0) == []
    # Evenly in the second from the page before: its quarters are 1.25 and 1.75.
    assert server.page(12, 2.0) == [
        (first, 1.25),
        (second, 1.75),
    ]


def test_a_first_token_is_not_before_the_request() -> None:
    server = Server()
    server.page(10, 0.0)
    request = server.send(0.8)
    assert server.page(11, 1.0) == [(request, 0.9)]


def test_a_request_sent_after_the_page_was_requested_is_not_meant() -> None:
    server = Server()
    server.page(10, 0.0)
    server.send(2.0)
    assert server.page(11, 1.0) == []


def test_first_tokens_that_were_reported_are_not_counted_again() -> None:
    server = Server()
    server.page(10, 0.0)
    first, second = server.send(0.1), server.send(0.2)
    server.report(first, 0.9)
    assert server.page(11, 1.0) == []
    assert server.page(12, 2.0) == [(second, 1.5)]


def test_a_page_may_be_late_with_what_was_reported() -> None:
    server = Server()
    server.page(10, 0.0)
    first, second = server.send(0.1), server.send(0.2)
    server.report(first, 0.999)
    assert server.page(10, 1.0) == []  # not on it yet
    assert server.page(11, 2.0) == []  # here it is
    assert server.page(12, 3.0) == [(second, 2.5)]


@pytest.mark.parametrize("before", [None, 100], ids=["first page", "after a restart"])
def test_what_the_counter_had_before_says_nothing(before: int | None) -> None:
    server = Server()
    if before is not None:
        server.page(before, 0.0)
    server.send(0.1)
    assert server.page(3, 1.0) == []
    assert len(server.page(4, 2.0)) == 1


def test_prompts_of_others_are_left_out_by_their_share() -> None:
    server = Server()
    prompts, begun = 0, 0
    server.page(prompts, 0.0)
    for second in range(1, 400):
        server.send(second - 0.5)
        prompts += 2  # one of them is another process's
        begun += len(server.page(prompts, float(second)))
    # Of 399 of ours about as many, not the 798 of the counter; all of them would be 399 at once.
    assert 330 < begun <= 399
    assert len(server.model.endpoint("a").pending) < 70
