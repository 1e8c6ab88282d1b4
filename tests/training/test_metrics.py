"""TrainCallback and metrics.jsonl."""

import json
import math

from tiny_runs import Notes, run

from qkv.training import read_metrics


def test_train_callback_receives_all_events(tmp_path):
    events = Notes()
    result = run(tmp_path, callback=events)
    assert events.began == [0] and events.saves == [3, 6, 9, 12] and events.ended == [result]
    assert [progress.step for progress in events.steps] == [2, 4, 6, 8, 10, 12]
    assert all(p.items_per_second > 0 and p.memory > 2**20 and math.isfinite(p.loss) for p in events.steps)
    assert events.steps[-1].seconds_left == 0.0
    logged = [line for line in read_metrics(tmp_path) if "loss" in line]
    assert [line["loss"] for line in logged] == [progress.loss for progress in events.steps]
    assert json.loads(json.dumps(result.to_dict()))["finished"] is True
