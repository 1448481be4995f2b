//! Checks of plans and messages that come from outside of this program, for example from another language.

use super::{Combination, Exchange, LocalView, Outgoing, Plan, Vector};
use crate::ids::WorkerId;

impl Outgoing {
    /// Checks a message of an algorithm with this many state vectors. The error says what is wrong.
    ///
    /// ```
    /// use upwash::algorithm::{Outgoing, Vector};
    /// assert_eq!(Outgoing::stepped().check(0), Ok(()));
    /// assert!(Outgoing::of([(Vector::State(0), 1.0)]).check(0).is_err());
    /// ```
    pub fn check(&self, state_vectors: usize) -> Result<(), String> {
        check_combination(&self.content, state_vectors)?;
        match self.public_copy {
            Some((copy, _)) => check_vector(Vector::State(copy), state_vectors),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// Checks this plan for the worker with this view in this exchange, in which every worker sends `messages`
    /// messages. The error says what is wrong.
    ///
    /// ```
    /// use upwash::WorkerId;
    /// use upwash::algorithm::{Assignment, Exchange, ExchangeContext, LocalView, Plan, Vector, WorkerStats};
    /// let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
    /// let own = WorkerStats { loss: None, degree: 1, scalar: 1.0 };
    /// let received = [(WorkerId(3), own)];
    /// let view = LocalView { worker: WorkerId(0), context: ExchangeContext::new(&round, 0.1), own, received: &received };
    /// let from = |sender| Plan::from(Assignment::mixed(Vector::Model, vec![(WorkerId(sender), 1.0)]));
    /// assert_eq!(from(3).check(&view, Exchange::Neighbors, 1, 0), Ok(()));
    /// let error = from(2).check(&view, Exchange::Neighbors, 1, 0).unwrap_err();
    /// assert_eq!(error, "worker 0 gives a weight to a message of worker 2, from which it has none");
    /// ```
    pub fn check(
        &self,
        view: &LocalView<'_>,
        exchange: Exchange,
        messages: usize,
        state_vectors: usize,
    ) -> Result<(), String> {
        let worker = view.worker;
        let has_message = |sender: WorkerId| sender == worker || view.received.iter().any(|entry| entry.0 == sender);
        for assignment in &self.assignments {
            if assignment.target == Vector::Step {
                return Err("a plan cannot assign to the step: assign to the model or to a state vector".into());
            }
            check_vector(assignment.target, state_vectors)?;
            check_combination(&assignment.own, state_vectors)?;
            let is_used = !assignment.messages.is_empty() || assignment.mean != 0.0;
            if is_used && assignment.message_index >= messages {
                let index = assignment.message_index;
                return Err(format!("message {index} is used, but a worker sends {messages}, counted from 0"));
            }
            if !assignment.messages.is_sorted_by(|a, b| a.0 < b.0) {
                return Err("the weights of messages are not in increasing order of their senders".into());
            }
            for &(sender, weight) in &assignment.messages {
                if !has_message(sender) {
                    return Err(format!(
                        "worker {worker} gives a weight to a message of worker {sender}, from which it has none"
                    ));
                }
                check_weight(weight)?;
            }
            check_weight(assignment.mean)?;
            if assignment.mean != 0.0 && exchange != Exchange::Mean {
                return Err("the mean of all messages is only known in an exchange that computes it".into());
            }
        }
        match self.scalar {
            Some(scalar) => check_weight(scalar),
            None => Ok(()),
        }?;
        let workers = view.context.workers();
        match self.leaders.into_iter().flatten().find(|&leader| leader.0 >= workers) {
            Some(leader) => Err(format!("leader {leader} is not one of {workers} workers")),
            None => Ok(()),
        }
    }
}

fn check_combination(combination: &Combination, state_vectors: usize) -> Result<(), String> {
    combination.iter().try_for_each(|&(vector, weight)| {
        check_weight(weight)?;
        check_vector(vector, state_vectors)
    })
}

fn check_vector(vector: Vector, state_vectors: usize) -> Result<(), String> {
    match vector {
        Vector::State(index) if index >= state_vectors => {
            Err(format!("state vector {index} does not exist: the algorithm has {state_vectors}"))
        }
        _ => Ok(()),
    }
}

fn check_weight(weight: f64) -> Result<(), String> {
    match weight.is_finite() {
        true => Ok(()),
        false => Err(format!("a weight is {weight}: every weight must be finite")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Assignment, ExchangeContext, WorkerStats};
    use crate::ids::with_ids;

    fn error_of(change: impl Fn(&mut Plan)) -> Option<String> {
        let round = upwash_topology::Schedule::one_peer_exponential(4).round(0);
        let own = WorkerStats { loss: None, degree: 1, scalar: 1.0 };
        let received = with_ids([(3, own)]);
        let context = ExchangeContext::new(&round, 0.1);
        let view = LocalView { worker: WorkerId(0), context, own, received: &received };
        let mut plan = Plan::from(Assignment::mixed(Vector::Model, with_ids([(0, 0.5), (3, 0.5)]).into()));
        change(&mut plan);
        plan.check(&view, Exchange::Neighbors, 1, 1).err()
    }

    #[test]
    fn what_an_engine_could_not_carry_out_is_refused() {
        assert_eq!(error_of(|_| {}), None);
        let model = |change: fn(&mut Assignment)| error_of(|plan| change(plan.model())).unwrap_or_default();
        assert!(model(|sum| sum.add(WorkerId(7), 0.1)).contains("worker 7"));
        assert!(model(|sum| sum.add(WorkerId(3), f64::NAN)).contains("NaN"));
        assert!(model(|sum| sum.messages.reverse()).contains("increasing"));
        assert!(model(|sum| sum.message_index = 1).contains("message 1"));
        assert!(model(|sum| sum.mean = 0.5).contains("mean"));
        assert!(model(|sum| sum.add_own(Vector::State(1), 1.0)).contains("state vector 1"));
        assert!(error_of(|plan| plan.assignments[0].target = Vector::Step).is_some());
        assert!(error_of(|plan| plan.leaders = Some([0, 4].map(WorkerId))).is_some());
        assert!(error_of(|plan| plan.scalar = Some(f64::INFINITY)).is_some());
    }
}
