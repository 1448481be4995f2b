//! Invalid configurations are rejected before the first round. The error names the option and the remedy.

#![allow(clippy::unwrap_used)]

use upwash::config::Config;
use upwash::experiment::{DataPaths, Experiment};

/// The error that rejects a configuration.
fn rejection(config: &str) -> String {
    let config = Config::parse(config, &[]);
    let prepared = config.map(|config| Experiment::prepare(config, &DataPaths::default()));
    match prepared {
        Err(error) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(_)) => panic!("the configuration was accepted"),
    }
}

#[test]
fn invalid_algorithm_options_are_rejected() {
    for (config, expected) in [
        ("name = \"dspgd\"", "algorithm.name = \"dspgd\": must be one of al-dsgd"),
        ("name = \"dspgd\"", "did you mean `dpsgd`?"),
        ("name = \"dpsgd\"\nbudget = 0.5", "algorithm.budget = 0.5: not an option of dpsgd, but of matcha: remove it"),
        ("name = \"all-reduce\"\nperiod = 2", "all-reduce has no options"),
        ("lambdabest = 0.1", "did you mean `lambda_best`?"),
        ("base = \"dpsdg\"", "algorithm.base = \"dpsdg\": must be one of"),
        ("variant = \"released\"\nlambda_best = 0.9", "at most 1 for `released`"),
        ("w_best = 0.7\nw_degree = 0.7", "algorithm.w_best = 0.7: the sum of w_best and w_degree must be at most 1"),
        ("w_best = -0.1", "algorithm.w_best = -0.1: must be a number of at least 0"),
        ("w_best = \"a lot\"", "algorithm.w_best = \"a lot\": must be a number"),
        ("base = \"matcha\"\nbudget = 0.0", "algorithm.budget = 0.0: must be a number above 0, at most 1"),
        ("variant = \"released\"\noverlap = true", "algorithm.overlap = true: false"),
        ("name = \"choco\"\npart = 1.5", "algorithm.part = 1.5: must be a number above 0, at most 1"),
        ("name = \"choco\"\npart = -0.1", "algorithm.part = -0.1"),
        ("name = \"choco\"\ncompressor = \"topk\"", "did you mean `top-k`?"),
        ("name = \"local-sgd\"\nperiod = 0", "algorithm.period = 0: must be a whole number of at least 1"),
        ("name = \"gossip-pga\"\nperiod = 0", "algorithm.period = 0"),
        ("name = \"slowmo\"\nslow_period = 0", "algorithm.slow_period = 0"),
        ("name = \"downpour\"\nstaleness = 0", "algorithm.staleness = 0"),
        ("name = \"lsgd\"\ngroups = 0", "algorithm.groups = 0"),
        ("name = \"slowmo\"\nbase = \"slowmo\"", "must be a synchronous algorithm other than slowmo"),
        ("name = \"slowmo\"\nbase = \"ad-psgd\"", "a synchronous algorithm"),
    ] {
        let found = rejection(&format!("[algorithm]\n{config}\n"));
        assert!(found.contains(expected), "{config}: {found}");
    }
}

/// AL-DSGD needs a base algorithm whose workers receive the models of their neighbors, and whose invariant sums it does
/// not break.
#[test]
fn al_dsgd_rejects_incompatible_base_algorithms() {
    for base in [
        "d2",
        "gradient-tracking",
        "sgp",
        "all-reduce",
        "local-sgd",
        "diloco",
        "noloco",
        "epidemic",
        "lsgd",
        "easgd",
        "parameter-server",
        "slowmo",
        "al-dsgd",
    ] {
        let found = rejection(&format!("[algorithm]\nbase = \"{base}\"\n[graph]\ntopology = \"star:5\"\n"));
        let names_remedy = found.contains("algorithm.base =") && found.contains("dpsgd, matcha, gossip-pga");
        assert!(names_remedy, "{base}: {found}");
    }
    let found = rejection("[algorithm]\nbase = \"choco\"\nvariant = \"written\"\n");
    assert!(found.contains("algorithm.variant = \"written\": sound"), "{found}");
}

#[test]
fn graphs_that_do_not_suit_the_algorithm_are_rejected() {
    for (config, expected) in [
        (
            "[algorithm]\nname = \"easgd\"\n",
            "needs a server, a node that is linked to all others, and graph.topology = \"paper:L1\" \
             has none: use star:8",
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
            "graph.directed_edges: D-PSGD does not converge to the average over directed links",
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
            "training.asynchronous = \"threads\": AL-DSGD (sound) over D-PSGD is synchronous",
        ),
    ] {
        let found = rejection(config);
        assert!(found.contains(expected), "{config}: {found}");
    }
}

#[test]
fn invalid_clock_settings_are_rejected() {
    for (clock, expected) in [
        ("gradient_seconds = [-1.0]", "clock.gradient_seconds = -1: must be at least 0"),
        ("gradient_seconds = [1.0, 2.0]", "one for each of 8 workers"),
        ("gradient_spread = -0.1", "clock.gradient_spread = -0.1: must be at least 0"),
        ("straggler_probability = 1.5", "at most 1"),
        ("straggler_factor = -2.0", "clock.straggler_factor"),
        ("megabits = 0.0", "clock.megabits = 0: must be above 0"),
        ("megabits = [[1.0]]", "8 rows of 8 numbers"),
        ("latency_ms = -1.0", "clock.latency_ms = -1: must be at least 0"),
        ("slow = [[8, 2.0]]", "clock.slow = [8, 2]"),
        ("slow = [[0, 0.0]]", "clock.slow = [0, 0]"),
        ("network = \"moon\"", "datacenter"),
    ] {
        let found = rejection(&format!("[clock]\n{clock}\n"));
        assert!(found.contains(expected), "{clock}: {found}");
    }
}
