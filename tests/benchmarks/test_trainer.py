from argparse import Namespace

from benchmarks import trainer


def test_a_training_among_the_results_is_not_done_again_and_one_of_other_settings_is(tmp_path, monkeypatch, capsys):
    done = []

    def train(side, seed):
        done.append((side, seed))
        return {"f1": seed / 10}

    monkeypatch.setattr(trainer, "_in_a_process_of_its_own", lambda side, seed: side(seed))
    monkeypatch.setattr("benchmarks.contenders.SECONDS_OF_REST", 0)
    sides = {name: (lambda seed, name=name: train(name, seed)) for name in ("ours", "Trainer")}

    def run(contenders, seeds, epochs, groups=False):
        done.clear()
        options = Namespace(contenders=contenders, seeds=seeds, results=tmp_path / "results.jsonl", peer_groups=groups)
        answers = trainer.train_in_turns(sides, options, {"epochs": epochs}, lambda answer: f"F1 {answer['f1']}")
        return {name: [answer["f1"] for answer in told] for name, told in answers.items()}

    assert run(["ours"], [1, 2], epochs=3) == {"ours": [0.1, 0.2]}
    assert done == [("ours", 1), ("ours", 2)]
    assert run(["ours", "Trainer"], [1, 2, 3], epochs=3) == {"ours": [0.1, 0.2, 0.3], "Trainer": [0.1, 0.2, 0.3]}
    assert sorted(done) == [("Trainer", 1), ("Trainer", 2), ("Trainer", 3), ("ours", 3)]
    run(["ours", "Trainer"], [1, 2, 3], epochs=3)
    assert done == []
    run(["ours", "Trainer"], [1], epochs=3, groups=True)
    assert done == [("Trainer", 1)]  # whose batches are others; ours are as they were
    run(["ours"], [1], epochs=2)
    assert done == [("ours", 1)]
    assert "Trainer, seed 3: F1 0.3" in capsys.readouterr().out
