"""The league: promotion by beating, priorities by hardness, state that goes on."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fledge.agents.base import BaseAgent
from fledge.core.errors import ConfigError, InputError
from fledge.league.league import League, LeagueConfig

WEIGHTS = {"w": torch.arange(3.0)}


class Copy(BaseAgent):
    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.kept = weights["w"].clone()


def make(**changed: object) -> League:
    chosen = {"ladder": ["easy", "middling", "hard"], "window": 100, **changed}
    cfg = LeagueConfig(**chosen)  # type: ignore[arg-type]
    return League(cfg, lambda name: BaseAgent() if name in ("easy", "middling", "hard") else None, Copy)


def fight(league: League, **results: tuple[int, int, int]) -> None:
    """Results of the learner (won, drawn, lost) by name of the opponent."""
    table = torch.zeros((len(league.agents), 3))
    for name, row in results.items():
        table[league.names.index(name.replace("_", " "))] = torch.tensor(row, dtype=torch.float32)
    league.learn(table, lambda: WEIGHTS)


def test_the_next_rung_joins_when_the_last_is_beaten_and_not_before() -> None:
    league = make()
    assert league.active == [0]
    assert league.weights() == [1.0, 0.0, 0.0]
    fight(league, easy=(79, 0, 21))
    assert league.stage == 0
    for _ in range(20):  # however long it takes
        fight(league, easy=(79, 0, 21))
    assert league.stage == 0
    fight(league, easy=(90, 0, 10))
    assert league.stage == 1
    assert league.active == [0, 1]


def test_running_away_is_not_winning() -> None:
    league = make()
    fight(league, easy=(40, 60, 0))
    assert league.stage == 0
    fight(league, easy=(60, 40, 0))
    assert league.stage == 1


def test_few_fights_do_not_promote() -> None:
    league = make()
    fight(league, easy=(50, 0, 0))
    assert league.stage == 0


def test_hard_opponents_are_met_more_often() -> None:
    league = make(priority=1.0)
    fight(league, easy=(95, 0, 5))
    fight(league, easy=(95, 0, 5), middling=(20, 0, 80))
    easy, middling, hard = league.weights()
    assert middling > 5 * easy > 0
    assert hard == 0
    assert easy + middling == pytest.approx(1)
    alike = make(priority=0.0)
    fight(alike, easy=(95, 0, 5))
    fight(alike, easy=(95, 0, 5), middling=(20, 0, 80))
    assert alike.weights()[:2] == pytest.approx([0.5, 0.5])


def test_past_selves_join_with_promotions_and_when_the_newest_is_beaten() -> None:
    league = make(past_selves=2, self_share=0.5)
    fight(league, easy=(90, 0, 10))
    assert league.names[3:] == ["self 1"]
    assert isinstance(league.agents[3], Copy)
    assert torch.equal(league.agents[3].kept, WEIGHTS["w"])
    assert sum(league.weights()[3:]) == pytest.approx(0.5)
    fight(league, self_1=(55, 0, 45))
    assert len(league.agents) == 4
    fight(league, self_1=(70, 0, 30))
    fight(league, self_2=(70, 0, 30))
    assert league.names[3:] == ["self 1", "self 2", "self 3"]
    assert league.active == [0, 1, 4, 5]  # the two newest
    assert league.weights()[3] == 0


def test_a_copy_does_not_change_with_the_learner() -> None:
    league = make(past_selves=1)
    changing = {"w": torch.zeros(3)}
    table = torch.tensor([[90.0, 0, 10], [0, 0, 0], [0, 0, 0]])
    league.learn(table, lambda: changing)
    changing["w"] += 1
    assert league.selves[3]["w"].tolist() == [0, 0, 0]


def test_a_saved_league_goes_on_the_same() -> None:
    league = make(past_selves=3)
    fight(league, easy=(90, 0, 10))
    fight(league, easy=(90, 0, 10), middling=(30, 20, 50), self_1=(70, 0, 30))
    other = make(past_selves=3)
    other.load_state_dict(league.state_dict())
    for each in (league, other):
        fight(each, middling=(85, 5, 10), self_2=(40, 30, 30))
    assert other.names == league.names
    assert other.weights() == league.weights()
    assert other.ratings.values == league.ratings.values
    assert other.metrics() == league.metrics()
    assert torch.equal(other.totals, league.totals)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ace'"):
        make(ladder=["ace"])
    with pytest.raises(ConfigError, match="at least one opponent"):
        make(ladder=[])
    with pytest.raises(ConfigError, match="The run's ladder"):
        make(ladder=["hard"]).load_state_dict(make().state_dict())
    with pytest.raises(InputError, match=r"results has shape \(4, 3\)"):
        make().learn(torch.zeros((4, 3)), lambda: WEIGHTS)


def test_without_advancing_the_whole_ladder_is_met_from_the_first_moment() -> None:
    league = make(advance=False)
    assert league.active == [0, 1, 2]
    assert league.weights() == pytest.approx([1 / 3] * 3)
    assert sorted(league.joined) == [0, 1, 2]


def test_the_league_notes_when_opponents_joined_and_how_strong_the_learner_was() -> None:
    league = make(past_selves=2)
    assert league.joined == {0: {"fights": 0.0, "rating": 1000.0}}
    fight(league, easy=(90, 0, 10))
    assert sorted(league.joined) == [0, 1, 3]  # the next pilot, and the first copy
    assert league.joined[1] == league.joined[3] == {"fights": 100.0, "rating": league.ratings.values[0]}
    again = make(past_selves=2)
    again.load_state_dict(league.state_dict())
    assert again.joined == league.joined
    assert league.metrics()["league/fights"] == 100.0
    old = {key: value for key, value in league.state_dict().items() if key != "joined"}
    again.load_state_dict(old)  # of a run from before it was noted
    assert again.joined == {}


def test_past_selves_that_are_no_longer_met_leave_the_state_and_keep_their_numbers() -> None:
    league = make(past_selves=2)
    fight(league, easy=(90, 0, 10))
    for number in range(1, 8):
        fight(league, **{f"self_{number}": (90, 0, 10)})
        league.retire(flying=[3])  # an episode against the first one lasts on
    assert league.names[3:] == [f"self {number}" for number in range(1, 9)]
    assert sorted(league.selves) == [3, 9, 10]  # of opponents 3 to 10
    assert sorted(league.state_dict()["selves"]) == ["10", "3", "9"]
    league.retire(flying=[])
    assert league.active == [0, 1, 9, 10]
    assert sorted(league.selves) == [9, 10]
    again = make(past_selves=2)
    again.load_state_dict(league.state_dict())
    assert [isinstance(agent, Copy) for agent in again.agents[3:]] == [False] * 6 + [True] * 2
    for each in (league, again):
        fight(each, self_8=(90, 0, 10))
    assert again.names == league.names
    assert again.names[-1] == "self 9"
    assert again.weights() == league.weights()


def test_each_past_self_is_handed_out_once_to_be_written_down() -> None:
    league = make(past_selves=1)
    fight(league, easy=(90, 0, 10))
    fight(league, self_1=(90, 0, 10))
    league.retire(flying=[])
    assert sorted(league.take_new_selves()) == [1, 2]
    assert league.take_new_selves() == {}
    fight(league, self_2=(90, 0, 10))
    assert sorted(league.take_new_selves()) == [3]


def test_a_state_that_holds_every_past_self_is_loaded_and_all_are_handed_out() -> None:
    league = make(past_selves=1)
    fight(league, easy=(90, 0, 10))
    fight(league, self_1=(90, 0, 10))
    old = {key: value for key, value in league.state_dict().items() if key != "pilots"}
    assert sorted(old["selves"]) == ["3", "4"]
    again = make(past_selves=1)
    again.load_state_dict(old)
    assert sorted(again.take_new_selves()) == [1, 2]
    again.retire(flying=[])
    assert sorted(again.state_dict()["selves"]) == ["4"]
    assert again.active == [0, 1, 4]


def test_a_rung_keeps_the_weights_it_was_met_with() -> None:
    """The run that it was taken from may have trained on meanwhile."""

    class Learned(BaseAgent):
        def __init__(self, value: float, width: int = 2) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((width,), value))

    cfg = LeagueConfig(ladder=["exploiter"])
    saved = League(cfg, lambda name: Learned(1.0), Copy).state_dict()
    later = League(cfg, lambda name: Learned(2.0), Copy)
    later.load_state_dict(saved)
    assert later.agents[0].w.tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="The network of opponent exploiter has changed"):
        League(cfg, lambda name: Learned(2.0, 3), Copy).load_state_dict(saved)


def test_a_ladder_that_could_never_advance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"league\.self_share is 1"):
        make(past_selves=2, self_share=1.0)
    assert make(past_selves=2, self_share=1.0, advance=False).active == [0, 1, 2]
    assert make(self_share=1.0).active == [0]  # without past selves it says nothing


def test_a_run_keeps_its_ladder() -> None:
    league = make(past_selves=1)
    fight(league, easy=(90, 0, 10))
    for ladder in (["easy"], ["easy", "middling"], ["easy", "hard", "middling"]):  # a part of it is another one, too
        with pytest.raises(
            ConfigError, match=r"ladder is \['easy', 'middling', 'hard'\], but league\.ladder is \['easy'"
        ):
            make(ladder=ladder, past_selves=1).load_state_dict(league.state_dict())


def test_a_league_that_goes_on_without_climbing_meets_the_whole_ladder() -> None:
    league = make()
    fight(league, easy=(40, 0, 10))
    again = make(advance=False)
    again.load_state_dict(league.state_dict())
    assert again.active == [0, 1, 2]
    assert again.joined[2]["fights"] == 50.0
