//! What cannot be run is refused before the first round, with the option's name and the remedy.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

fn refusal(config: &str) -> String {
    let config = Config::parse(config, &[]);
    let prepared = config.map(|config| Experiment::prepare(config, &DataPaths::default()));
    match prepared {
        Err(error) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(_)) => panic!("it was accepted"),
    }
}

#[test]
fn options_of_algorithms() {
    for (config, said) in [
        ("name = \"dspgd\"", "algorithm.name = \"dspgd\": one of al-dsgd"),
        ("name = \"dspgd\"", "did you mean `dpsgd`?"),
        ("name = \"dpsgd\"\nbudget = 0.5", "algorithm.budget = 0.5: no option of dpsgd"),
        ("name = \"all-reduce\"\nperiod = 2", "all-reduce has no options"),
        ("lambdabest = 0.1", "did you mean `lambda_best`?"),
        ("base = \"dpsdg\"", "algorithm.base = \"dpsdg\": one of"),
        ("variant = \"released\"\nlambda_best = 0.9", "at most 1 for `released`"),
        ("w_best = 0.7\nw_degree = 0.7", "algorithm.w_best = 0.7: with w_degree at most 1"),
        ("w_best = -0.1", "algorithm.w_best = -0.1: a number from 0 on"),
        ("w_best = \"a lot\"", "algorithm.w_best = \"a lot\": a number"),
        ("base = \"matcha\"\nbudget = 0.0", "algorithm.budget = 0.0: a number from"),
        ("variant = \"released\"\noverlap = true", "algorithm.overlap = true: false"),
        ("name = \"choco\"\npart = 1.5", "algorithm.part = 1.5: a number from 0 to 1"),
        ("name = \"choco\"\npart = -0.1", "algorithm.part = -0.1"),
        ("name = \"choco\"\ncompressor = \"topk\"", "did you mean `top-k`?"),
        ("name = \"local-sgd\"\nperiod = 0", "algorithm.period = 0: a whole number of at least 1"),
        ("name = \"gossip-pga\"\nperiod = 0", "algorithm.period = 0"),
        ("name = \"slowmo\"\nslow_period = 0", "algorithm.slow_period = 0"),
        ("name = \"downpour\"\nstaleness = 0", "algorithm.staleness = 0"),
        ("name = \"lsgd\"\ngroups = 0", "algorithm.groups = 0"),
        ("name = \"slowmo\"\nbase = \"slowmo\"", "another algorithm than slowmo itself"),
        ("name = \"slowmo\"\nbase = \"ad-psgd\"", "a synchronous algorithm"),
    ] {
        let found = refusal(&format!("[algorithm]\n{config}\n"));
        assert!(found.contains(said), "{config}: {found}");
    }
}

/// AL-DSGD leads those whose workers see their neighbors' models and whose sums it does not break.
#[test]
fn what_al_dsgd_cannot_lead() {
    for base in [
        "d2",
        "gradient-tracking",
        "sgp",
        "all-reduce",
        "local-sgd",
        "lsgd",
        "easgd",
        "parameter-server",
        "slowmo",
        "al-dsgd",
    ] {
        let found = refusal(&format!("[algorithm]\nbase = \"{base}\"\n[graph]\ntopology = \"star:5\"\n"));
        let said = found.contains("algorithm.base =") && found.contains("dpsgd, matcha, gossip-pga");
        assert!(said, "{base}: {found}");
    }
    let found = refusal("[algorithm]\nbase = \"choco\"\nvariant = \"written\"\n");
    assert!(found.contains("algorithm.variant = \"written\": sound"), "{found}");
}

#[test]
fn graphs_that_an_algorithm_cannot_use() {
    for (config, said) in [
        (
            "[algorithm]\nname = \"easgd\"\n",
            "needs a server, a worker that is linked with all others, and graph.topology = \"paper:L1\" \
             has none: take star:8",
        ),
        ("[algorithm]\nname = \"downpour\"\n[graph]\ntopology = \"ring:4\"\n", "star:4 for a server and 3 workers"),
        (
            "[algorithm]\nname = \"parameter-server\"\n[graph]\ntopology = \"path:1\"\n",
            "star:2 for a server and one worker",
        ),
        (
            "[algorithm]\nname = \"sgp\"\n[graph]\ntopology = \"ring:3\"\ndirected_edges = [[0, 1], [1, 2]]\n",
            "nothing that worker 1 sends ever reaches worker 0",
        ),
        (
            "[algorithm]\nname = \"dpsgd\"\n[graph]\ntopology = \"ring:3\"\ndirected_edges = [[0, 1]]\n",
            "graph.directed_edges: over links that go one way, D-PSGD has no average",
        ),
        (
            "[algorithm]\nname = \"sgp\"\n[graph]\ntopology = \"ring:3\"\ndirected_edges = [[0, 7]]\n",
            "graph.directed_edges: node 7 is out of range",
        ),
        ("[algorithm]\nname = \"d2\"\nlazy = false\n", "W's smallest eigenvalue is above -1/3, and here it is -0.8086"),
        ("[algorithm]\nname = \"d2\"\n[graph]\ncopies = 2\n", "the same links in every round"),
        ("[algorithm]\nname = \"ad-psgd\"\n[graph]\ncopies = 2\n", "without rounds"),
        ("[algorithm]\nname = \"ad-psgd\"\n[training]\nstatistics = \"averaged\"\n", "training.statistics"),
        (
            "[training]\nasynchronous = \"threads\"\n",
            "training.asynchronous = \"threads\": AL-DSGD (sound) over D-PSGD goes in rounds",
        ),
    ] {
        let found = refusal(config);
        assert!(found.contains(said), "{config}: {found}");
    }
}

#[test]
fn costs_that_cannot_be() {
    for (clock, said) in [
        ("gradient_seconds = [-1.0]", "clock.gradient_seconds = -1: at least 0"),
        ("gradient_seconds = [1.0, 2.0]", "one for each of 8 workers"),
        ("gradient_spread = -0.1", "clock.gradient_spread = -0.1: at least 0"),
        ("straggler_probability = 1.5", "at most 1"),
        ("straggler_factor = -2.0", "clock.straggler_factor"),
        ("megabits = 0.0", "clock.megabits = 0: above 0"),
        ("megabits = [[1.0]]", "8 rows of 8 numbers"),
        ("latency_ms = -1.0", "clock.latency_ms = -1: at least 0"),
        ("slow = [[8, 2.0]]", "clock.slow = [8, 2]"),
        ("slow = [[0, 0.0]]", "clock.slow = [0, 0]"),
        ("network = \"moon\"", "datacenter"),
    ] {
        let found = refusal(&format!("[clock]\n{clock}\n"));
        assert!(found.contains(said), "{clock}: {found}");
    }
}
