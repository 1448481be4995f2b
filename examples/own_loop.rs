//! Your own training loop, which drives a node round by round: `cargo run -p upwash --example own_loop`

use upwash::experiment::{DataPaths, Experiment};
use upwash::run::Progress;
use upwash::transport::InProcess;
use upwash::{Config, ExternalState, NextRound, Node, Score};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::parse("model = \"softmax\"\n[training]\nepochs = 1\n", &[])?;
    let experiment = Experiment::prepare(config, &DataPaths::default())?;
    let layout = experiment.network.layout();
    // The models of eight workers, as plain vectors.
    let start = |worker| experiment.network.start(1, worker);
    let mut models: Vec<Vec<f32>> = (0..8).map(start).collect();
    let rows: Vec<&[f32]> = models.iter().map(Vec::as_slice).collect();
    let mut external = ExternalState::new(&experiment.engine_spec(), layout, &rows);
    let (mut transport, mut nobody) = (InProcess::new(8), ());
    let engine = external.attach(models.iter_mut().map(|row| &mut row[..]).collect(), vec![])?;
    let progress = Progress::start(8);
    let mut node = Node::new(&experiment, &engine, &mut transport, progress, &mut nobody)?;
    loop {
        let rows = models.iter_mut().map(|row| &mut row[..]).collect();
        let mut engine = external.attach(rows, vec![])?;
        let NextRound::Run(_) = node.begin_round(&mut engine)? else {
            break;
        };
        engine.before_step();
        // Compute your gradients and steps here, in place. This example shrinks every model a little and reports no
        // loss.
        models.iter_mut().flatten().for_each(|x| *x *= 0.99);
        let rows = models.iter_mut().map(|row| &mut row[..]).collect();
        let mut engine = external.attach(rows, vec![])?;
        engine.after_step();
        node.finish_round(&mut engine, &[Some(Score::default()); 8])?;
    }
    println!("{} rounds", node.round());
    Ok(())
}
