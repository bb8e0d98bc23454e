//! Building a rubric: a chain of rewards, metrics and judges, whose first fault is kept until it is built.

use std::{ops::RangeInclusive, sync::Arc};

use super::{
    GroupScorer, Panel, RewardLine, Rubric, RubricError, RubricLine, Scorer, Seat, Source,
    judge::{self, BindError, Host, Judge, JudgeSpec},
};
use crate::{config::Secret, trace::Message};

impl Rubric {
    /// A rubric with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a weighted reward.
    #[must_use]
    pub fn reward(self, name: &str, weight: f64, scorer: impl Scorer + 'static) -> Self {
        self.seat_reward(RewardLine::new(name, weight), Arc::new(scorer))
    }

    /// Adds a weighted reward whose raw score must lie within bounds, ends included; outside, the scoring failed.
    #[must_use]
    pub fn reward_in(
        self,
        name: &str,
        weight: f64,
        bounds: RangeInclusive<f64>,
        scorer: impl Scorer + 'static,
    ) -> Self {
        self.seat_reward(RewardLine { bounds: Some(bounds), ..RewardLine::new(name, weight) }, Arc::new(scorer))
    }

    /// Adds a weighted reward of a line made before.
    #[must_use]
    pub fn seat_reward(self, line: RewardLine, scorer: Arc<dyn Scorer>) -> Self {
        self.add_rewards(vec![line], &[], Source::One(scorer))
    }

    /// Adds rewards that one panel scores together; its scores come in the order of the lines.
    #[must_use]
    pub fn panel(self, lines: Vec<RewardLine>, panel: Arc<dyn Panel>) -> Self {
        self.add_rewards(lines, &[], Source::Panel(panel))
    }

    /// Adds the reward of a judge, with a metric `<judge>/<criterion>` for each of its criteria.
    #[must_use]
    pub fn judge(mut self, spec: JudgeSpec) -> Self {
        let (line, details) = (RewardLine::new(&spec.name, spec.weight), spec.metrics());
        let judge = Arc::new(Judge::new(spec));
        self.judges.push(Arc::clone(&judge));
        self.add_rewards(vec![line], &details, Source::Panel(judge))
    }

    /// Gives its judges the endpoints that they ask, and the copies of this rubric too; the secrets that are sent there come
    /// back. Without judges there is nothing to give. To be done before the first rollout is scored.
    ///
    /// # Errors
    /// All judges that cannot be asked, for example because the variable of a key is not set.
    pub fn bind(&self, host: &Host) -> Result<Vec<Secret>, BindError> {
        judge::bind(&self.judges, host)
    }

    /// Asks, before a run, the endpoints of its judges whether they take the key and have the model; all at once. `at_host` asks
    /// the run's endpoint too, for the judges of another model than the run's.
    ///
    /// # Errors
    /// All judges whose endpoint does not answer, or has not got their model.
    pub async fn check_judges(&self, at_host: bool) -> Result<(), BindError> {
        judge::check(&self.judges, at_host).await
    }

    /// The rubric without its judges, and the names of these: what can be scored where no model is asked.
    pub fn without_judges(&self) -> (Self, Vec<String>) {
        let judges: Vec<String> = self.judges.iter().map(|judge| judge.spec().name.clone()).collect();
        let mut rubric = Self { judges: Vec::new(), ..self.clone() };
        rubric.rewards.retain(|seat| !seat.lines.iter().any(|line| judges.contains(&line.name)));
        (rubric, judges)
    }

    /// What a judge of this rubric that finds everything right answers to a question of its own; `None` for any other
    /// conversation. A simulated model answers with it.
    pub fn full_marks(&self, conversation: &[Message]) -> Option<String> {
        self.judges.iter().find_map(|judge| judge.full_marks(conversation))
    }

    /// Adds a metric.
    #[must_use]
    pub fn metric(self, name: &str, scorer: impl Scorer + 'static) -> Self {
        self.seat_metric(name, Arc::new(scorer))
    }

    /// Adds a metric whose scorer is shared.
    #[must_use]
    pub fn seat_metric(self, name: &str, scorer: Arc<dyn Scorer>) -> Self {
        self.add_metrics(&[name.to_owned()], Source::One(scorer))
    }

    /// Adds metrics that one panel measures together, in the order of the names.
    #[must_use]
    pub fn metric_panel(self, names: &[String], panel: Arc<dyn Panel>) -> Self {
        self.add_metrics(names, Source::Panel(panel))
    }

    /// Adds a weighted reward that compares all rollouts of a task with each other.
    #[must_use]
    pub fn group_reward(mut self, line: RewardLine, scorer: Arc<dyn GroupScorer>) -> Self {
        self.check_names(&[&line.name]);
        self.check(&line);
        self.group_rewards.push((line, scorer));
        self
    }

    /// Gives a reward, one's own or a group's, another weight.
    ///
    /// # Errors
    /// When it has no reward of this name, or the weight is no number.
    pub fn reweight(&mut self, name: &str, weight: f64) -> Result<(), RubricError> {
        if !weight.is_finite() {
            return Err(RubricError::Weight { name: name.to_owned(), weight });
        }
        let own = self.rewards.iter_mut().flat_map(|seat| &mut seat.lines);
        let all = own.chain(self.group_rewards.iter_mut().map(|(line, _)| line));
        let mut there = Vec::new();
        for line in all {
            if line.name == name {
                line.weight = weight;
                return Ok(());
            }
            there.push(line.name.clone());
        }
        Err(RubricError::NoReward { name: name.to_owned(), there })
    }

    /// The rubric, if nothing in the chain that made it was wrong.
    pub fn build(self) -> Result<Self, RubricError> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self),
        }
    }

    /// The names of its rewards, then of its metrics, in the order they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.name)
    }

    /// Its rewards with their weights, those of groups last, then its metrics, in the order they were added.
    pub fn lines(&self) -> impl Iterator<Item = RubricLine<'_>> {
        let own = self.rewards.iter().flat_map(|seat| &seat.lines);
        let rewards = own.chain(self.group_rewards.iter().map(|(line, _)| line)).map(|line| (line, Some(line.weight)));
        let details = self.rewards.iter().flat_map(|seat| &seat.details);
        let metrics = self.metrics.iter().flat_map(|seat| &seat.lines).chain(details).map(|line| (line, None));
        rewards.chain(metrics).map(|(line, weight)| RubricLine {
            name: &line.name,
            weight,
            bounds: line.bounds.clone(),
        })
    }

    /// Whether some of its rewards are given to a whole group: then no rollout of a task is scored before all are done.
    pub fn compares_groups(&self) -> bool {
        !self.group_rewards.is_empty()
    }

    /// Whether scoring one rollout waits for something outside this process, so that it may be lost half-way.
    pub fn waits(&self) -> bool {
        self.rewards.iter().chain(&self.metrics).any(|seat| match &seat.scorer {
            Source::One(scorer) => scorer.waits(),
            Source::Panel(panel) => panel.waits(),
        })
    }

    fn add_rewards(mut self, lines: Vec<RewardLine>, details: &[String], scorer: Source) -> Self {
        let own = lines.iter().map(|line| &line.name).chain(details);
        self.check_names(&own.map(String::as_str).collect::<Vec<_>>());
        lines.iter().for_each(|line| self.check(line));
        let details = details.iter().map(|name| RewardLine::new(name, 0.0)).collect();
        self.rewards.push(Seat { lines, details, scorer });
        self
    }

    fn add_metrics(mut self, names: &[String], scorer: Source) -> Self {
        let lines = names.iter().map(|name| RewardLine::new(name, 0.0)).collect::<Vec<_>>();
        self.check_names(&names.iter().map(String::as_str).collect::<Vec<_>>());
        self.metrics.push(Seat { lines, details: Vec::new(), scorer });
        self
    }

    fn check(&mut self, line: &RewardLine) {
        let name = &line.name;
        if !line.weight.is_finite() {
            self.fault.get_or_insert(RubricError::Weight { name: name.clone(), weight: line.weight });
        }
        if let Some(bounds) = &line.bounds {
            let (low, high) = (*bounds.start(), *bounds.end());
            if !(low.is_finite() && high.is_finite() && low <= high) {
                self.fault.get_or_insert(RubricError::Bounds { name: name.clone(), low, high });
            }
        }
    }

    /// Of the names that come together, too, none may be there twice.
    fn check_names(&mut self, names: &[&str]) {
        for (position, name) in names.iter().enumerate() {
            if name.is_empty() {
                self.fault.get_or_insert(RubricError::Unnamed);
            } else if self.names().chain(names[..position].iter().copied()).any(|other| other == *name) {
                self.fault.get_or_insert(RubricError::Duplicate((*name).to_owned()));
            }
        }
    }
}
