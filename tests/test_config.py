"""Config: what NCCL's ranges allow is held, anything else is refused at once, by field."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rccl_py.config import CommShrinkFlag, Config, CTAPolicy, WindowFlag
from rccl_py.errors import InvalidArgument, Result

BOOLS = ("blocking", "split_share", "collnet_enable", "shrink_share", "nvlink_centric_sched",
         "launch_order_implicit", "rma_eager_init")  # fmt: skip
RANGES = {
    "cga_cluster_size": (0, 8), "min_ctas": (1, 32), "max_ctas": (1, 32),
    "traffic_class": (0, 2**31 - 1), "cta_policy": (0, 2), "nvls_ctas": (1, 2**31 - 1),
    "graph_usage_mode": (0, 2), "num_rma_ctx": (1, 2**31 - 1), "max_p2p_peers": (1, 2**31 - 1),
    "graph_stream_ordering": (0, 1), "num_rma_sig": (0, 2**31 - 1),
    "n_channels_per_net_peer": (1, 2**30),
}  # fmt: skip
TEXTS = ("net_name", "comm_name", "algo", "proto", "policy", "flight_dir")
NAMES = [field.name for field in fields(Config)]


def test_every_field_is_tested_here():
    assert sorted([*BOOLS, *RANGES, *TEXTS, "timeout", "schedules"]) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_set_at_first(name):
    assert getattr(Config(), name) is None


@pytest.mark.parametrize("name", NAMES)
def test_what_a_field_does_is_in_the_table(name):
    assert name in Config.__doc__


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_a_range_are_held(name):
    for value in RANGES[name]:
        assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize("name", RANGES)
def test_beyond_either_end_is_refused_with_field_value_and_range(name):
    low, high = RANGES[name]
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidArgument, match=f"{name} {value}: expected {low} to {high}"):
            Config(**{name: value})


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", [True, 1.0, "1", [1]])
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(InvalidArgument, match=f"config: {name} .* a whole number"):
        Config(**{name: value})


@pytest.mark.parametrize("name", BOOLS)
@pytest.mark.parametrize("value", [0, 1, "yes", 1.0])
def test_only_true_and_false_are_truth_values(name, value):
    with pytest.raises(InvalidArgument, match=f"config: {name} .*: True or False was expected"):
        Config(**{name: value})


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_a_text(name):
    assert getattr(Config(**{name: "ring"}), name) == "ring"
    with pytest.raises(InvalidArgument, match=f"config: {name} 3 is a int"):
        Config(**{name: 3})


@pytest.mark.parametrize("name", ["net_name", "comm_name"])
def test_a_blank_name_is_refused(name):
    with pytest.raises(InvalidArgument, match=f"config: {name} ' ' is blank"):
        Config(**{name: " "})


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), 1e10])
def test_a_timeout_that_is_no_time_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"config: timeout .*expected above 0"):
        Config(timeout=value)


def test_a_timeout_is_seconds_as_a_float():
    assert isinstance(Config(timeout=2).timeout, float)


def test_numbers_of_numpy_are_whole_numbers():
    assert type(Config(min_ctas=np.int64(4)).min_ctas) is int


@given(st.integers(1, 2**30))
def test_channels_a_peer_are_rounded_up_to_a_power_of_two(n):
    held = Config(n_channels_per_net_peer=n).n_channels_per_net_peer
    assert held & (held - 1) == 0 and n <= held < 2 * n


def test_a_policy_given_as_a_number_becomes_the_policy():
    assert Config(cta_policy=2).cta_policy is CTAPolicy.ZERO


# ---- fields together ------------------------------------------------------------------------


def test_fewest_channels_above_most_are_refused():
    with pytest.raises(InvalidArgument, match="min_ctas 9 is above max_ctas 8"):
        Config(min_ctas=9, max_ctas=8)


def test_fewest_channels_may_equal_most():
    assert Config(min_ctas=8, max_ctas=8).max_ctas == 8


def test_graphs_without_order_are_refused_with_mixing():
    with pytest.raises(InvalidArgument, match="ordering 0 does not go with graph_usage_mode 2"):
        Config(graph_stream_ordering=0, graph_usage_mode=2)


@pytest.mark.parametrize("mode, ordering", [(0, 0), (1, 0), (2, 1), (None, 0), (2, None)])
def test_other_modes_and_orders_of_graphs_go_together(mode, ordering):
    held = Config(graph_usage_mode=mode, graph_stream_ordering=ordering)
    assert (held.graph_usage_mode, held.graph_stream_ordering) == (mode, ordering)


# ---- assignment -----------------------------------------------------------------------------


def test_an_assignment_is_checked_and_a_refused_one_changes_nothing():
    config = Config(min_ctas=4)
    with pytest.raises(InvalidArgument, match="min_ctas 33: expected 1 to 32"):
        config.min_ctas = 33
    assert config.min_ctas == 4


def test_an_assignment_must_fit_the_other_fields():
    config = Config(min_ctas=4)
    with pytest.raises(InvalidArgument, match="min_ctas 4 is above max_ctas 2"):
        config.max_ctas = 2
    assert config.max_ctas is None


def test_a_field_is_unset_by_none_or_by_deleting_it():
    config = Config(min_ctas=4, max_ctas=8)
    config.min_ctas = None
    del config.max_ctas
    assert config == Config()


def test_a_misspelled_field_is_no_field():
    with pytest.raises(AttributeError, match="no field 'min_cta': one of blocking"):
        Config().min_cta = 3


def test_fields_are_named_never_counted():
    with pytest.raises(TypeError):
        Config(True)


# ---- printing, copying, inheriting ----------------------------------------------------------


def test_only_what_is_set_is_printed():
    assert repr(Config(max_ctas=4, comm_name="dp")) == "Config(max_ctas=4, comm_name='dp')"
    assert repr(Config()) == "Config()"


def test_configs_of_equal_settings_are_equal():
    assert Config(max_ctas=4) == Config(max_ctas=4) != Config(max_ctas=5)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy,
                                   lambda c: pickle.loads(pickle.dumps(c))])  # fmt: skip
def test_a_copy_is_equal_and_independent(again):
    config = Config(max_ctas=4, cta_policy=CTAPolicy.ZERO)
    other = again(config)
    assert other == config
    other.max_ctas = 5
    assert config.max_ctas == 4


@pytest.mark.parametrize("value, blocks", [(None, True), (True, True), (False, False)])
def test_a_communicator_blocks_unless_told_not_to(value, blocks):
    assert Config(blocking=value).blocks is blocks


def test_a_child_takes_what_it_does_not_set_from_its_parent():
    child = Config(max_ctas=4).merged(Config(max_ctas=8, timeout=3.0, blocking=False))
    assert child == Config(max_ctas=4, timeout=3.0, blocking=False)


def test_a_child_may_set_what_is_false():
    assert Config(blocking=False, num_rma_sig=0).merged(Config(blocking=True, num_rma_sig=4)) == (
        Config(blocking=False, num_rma_sig=0)
    )


def test_without_a_parent_a_child_is_a_copy():
    config = Config(max_ctas=4)
    assert config.merged(None) == config and config.merged(None) is not config


def test_a_parent_is_not_changed_by_its_child():
    parent = Config(timeout=3.0)
    Config(max_ctas=4).merged(parent).timeout = 5
    assert parent == Config(timeout=3.0)


def test_a_child_that_contradicts_its_parent_is_refused():
    with pytest.raises(InvalidArgument, match=r"min_ctas 9 is above max_ctas 8.*the parent"):
        Config(min_ctas=9).merged(Config(max_ctas=8))


def test_a_refusal_has_the_code_of_a_wrong_argument():
    with pytest.raises(InvalidArgument) as caught:
        Config(min_ctas=0)
    assert caught.value.code is Result.INVALID_ARGUMENT


def test_the_flags_have_the_numbers_of_the_c_api():
    assert [int(flag) for flag in (CTAPolicy.DEFAULT, CTAPolicy.EFFICIENCY, CTAPolicy.ZERO)] == [
        0, 1, 2]  # fmt: skip
    assert (CommShrinkFlag.DEFAULT, CommShrinkFlag.ABORT) == (0, 1)
    assert (WindowFlag.DEFAULT, WindowFlag.COLL_SYMMETRIC, WindowFlag.STRICT_ORDERING) == (0, 1, 2)


def test_flags_of_a_window_may_be_joined():
    assert WindowFlag(3) == WindowFlag.COLL_SYMMETRIC | WindowFlag.STRICT_ORDERING
