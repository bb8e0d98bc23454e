//! Asking a judge: the call, the second asking, the record in the trace.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    Asking as Whom, Host, JudgeSpec,
    cache::{Answered, Cache},
    host::Cause,
    prompt,
    verdict::Verdict,
};
use crate::{
    config::Secret,
    inference::{ChatCall, ChatFailure, ChatReply, FailureKind, Pool, PoolSettings, ProbeFailure, Session},
    rubric::{Expense, Ledger, Panel, Score, ScoreContext},
    trace::{Fault, FaultClass, FinishReason, Message, Trace},
};

/// Why a judge is not asked where nobody is.
const NOT_ASKED: &str = "no judge is asked here; `--judges` asks those that have an endpoint of their own, `-b`, `-m` and `-k` \
                         name one for the others";

/// Why a verdict that may have no end is none.
const CUT: &str = "it was cut off at the limit of tokens; raise `max_tokens` in the judge's `sampling`";

/// Why a rollout without a reply has no points.
const NO_REPLY: &str = "the model gave no reply; the judge was not asked";

/// A judge as a scorer: its score first, then those of its criteria.
pub struct Judge {
    spec: JudgeSpec,
    /// Ends every question of this judge, and tells a simulator that it is one.
    instruction: String,
    bound: RwLock<Option<Arc<Bound>>>,
}

/// Whom a judge asks.
struct Bound {
    /// Its endpoint, or why it cannot be asked.
    pool: Result<Pool, String>,
    model: String,
    slots: Semaphore,
    cache: Arc<Cache>,
    /// The endpoint does not take `response_format`.
    unstructured: AtomicBool,
}

impl Judge {
    pub(in crate::rubric) fn new(spec: JudgeSpec) -> Self {
        let instruction = prompt::instruction(&spec.form, spec.structured);
        Self { spec, instruction, bound: RwLock::default() }
    }

    /// As it was declared.
    pub fn spec(&self) -> &JudgeSpec {
        &self.spec
    }

    /// Gives it its endpoint; the secrets that are sent there come back.
    pub(super) fn bind(&self, host: &Host, cache: Arc<Cache>) -> Result<Vec<Secret>, Cause> {
        let mut secrets = Vec::new();
        let pool = match (host.asking, self.pool(host, &mut secrets)) {
            (Whom::Nobody, _) => Err(NOT_ASKED.to_owned()),
            (_, Ok(pool)) => Ok(pool),
            (Whom::Possible, Err(cause)) => Err(cause.to_string()),
            (Whom::All, Err(cause)) => return Err(cause),
        };
        let bound = Bound {
            pool,
            model: self.spec.model.clone().unwrap_or_else(|| host.model.clone()),
            slots: Semaphore::new(self.spec.max_concurrent),
            cache,
            unstructured: AtomicBool::new(false),
        };
        *self.bound.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(bound));
        Ok(secrets)
    }

    fn pool(&self, host: &Host, secrets: &mut Vec<Secret>) -> Result<Pool, Cause> {
        if self.spec.model.as_ref().unwrap_or(&host.model).is_empty() {
            return Err(Cause::NoModel);
        }
        let Some(endpoint) = &self.spec.endpoint else { return host.pool.clone().ok_or(Cause::NoEndpoint) };
        let settings = PoolSettings::from_config(&endpoint.client).map_err(Cause::Secret)?;
        if endpoint.needs_key && settings.key.is_none() {
            return Err(Cause::NoKey(settings.api_key_var));
        }
        secrets.extend(settings.key.iter().chain(settings.secret_headers.values()).cloned());
        Pool::new(settings, host.observer.clone()).map_err(Cause::Pool)
    }

    /// Whether its endpoint has its model: one of its own, and `at_host` also the run's, where it asks for another model than
    /// the run.
    pub(super) async fn check(&self, at_host: bool) -> Result<(), ProbeFailure> {
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner).clone();
        let elsewhere = self.spec.endpoint.is_some() || (at_host && self.spec.model.is_some());
        match bound.as_ref().map(|bound| (&bound.pool, &bound.model)) {
            Some((Ok(pool), model)) if elsewhere => pool.check_model(model).await.map(drop),
            _ => Ok(()),
        }
    }

    /// What a judge that finds everything right answers to a question of this judge; `None` if it is not one.
    pub fn full_marks(&self, conversation: &[Message]) -> Option<String> {
        let asked =
            |message: &Message| matches!(message, Message::User(_)) && message.text().ends_with(&self.instruction);
        conversation.iter().any(asked).then(|| self.spec.form.full_marks(self.spec.structured))
    }

    async fn judge(&self, context: ScoreContext<'_>) -> Result<Verdict, Fault> {
        if prompt::is_empty(self.spec.view, context.trace) {
            return Ok(Verdict::all(&self.spec.form, 0.0, NO_REPLY));
        }
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner).clone();
        let bound = bound.ok_or_else(|| fault("it has no endpoint yet; bind the rubric before it scores"))?;
        let question = prompt::question(&self.spec, context)
            .map_err(|problem| fault(&format!("its prompt cannot be filled: {problem}")))?;
        let messages = vec![Message::user(question + &self.instruction)];
        let sampling = self.sampling(self.spec.structured);
        let key = self.key(&bound.model, &messages, &sampling);
        if let Some(known) = self.recorded(context.trace, &key) {
            return Ok(known);
        }
        let pool = bound
            .pool
            .as_ref()
            .map_err(|cause| fault(&format!("its verdict on this is not recorded, and it cannot be asked: {cause}")))?;
        let asking = Asking {
            judge: self,
            bound: &bound,
            session: pool.session(&format!("{}-{}", context.trace.id, self.spec.name)),
            key: &key,
            ledger: context.ledger,
        };
        let (outcome, cached) = bound.cache.once(&key, asking.until_understood(messages.clone(), sampling)).await;
        let answered = outcome?;
        if cached {
            let message = Message::assistant(answered.text.as_str());
            let mut record = self.record(&bound.model, &messages, &message);
            self.add_verdict(&mut record, &key, &answered.verdict);
            record.insert("cached".to_owned(), true.into());
            context.ledger.note(Expense { usage: None, exchange: record.into() });
        }
        Ok(answered.verdict.clone())
    }

    fn sampling(&self, structured: bool) -> Map<String, Value> {
        let mut sampling = self.spec.sampling.clone();
        if structured {
            let schema = json!({"name": "verdict", "strict": true, "schema": self.spec.form.schema()});
            sampling.insert("response_format".to_owned(), json!({"type": "json_schema", "json_schema": schema}));
        }
        sampling
    }

    /// Stands for everything that decides the verdict.
    fn key(&self, model: &str, messages: &[Message], sampling: &Map<String, Value>) -> String {
        let content = json!([model, messages, sampling, self.spec.form.identity()]);
        Sha256::digest(content.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The verdict that the trace already holds on this question.
    fn recorded(&self, trace: &Trace, key: &str) -> Option<Verdict> {
        trace
            .judge_calls()
            .iter()
            .rev()
            .filter(|call| call["key"] == key)
            .find_map(|call| self.spec.form.read(call["response"]["message"]["content"].as_str()?).ok())
    }

    /// An exchange as verifiers records it.
    fn record(&self, model: &str, messages: &[Message], reply: &Message) -> Map<String, Value> {
        let record = json!({
            "name": self.spec.name,
            "request": {"model": model, "messages": messages},
            "response": {"message": reply, "parsed": null, "usage": null},
        });
        if let Value::Object(record) = record { record } else { Map::new() }
    }

    fn add_verdict(&self, record: &mut Map<String, Value>, key: &str, verdict: &Verdict) {
        record["response"]["parsed"] = verdict.score.into();
        let names = self.spec.form.criteria().iter().map(|criterion| &criterion.name);
        let parts: Vec<Value> = names
            .zip(&verdict.parts)
            .map(|(name, (score, why))| json!({"name": name, "score": score, "why": why}))
            .collect();
        let mut kept = json!({"score": verdict.score, "why": verdict.why});
        if !parts.is_empty() {
            kept["criteria"] = parts.into();
        }
        record.insert("key".to_owned(), key.into());
        record.insert("verdict".to_owned(), kept);
    }
}

impl Panel for Judge {
    fn score<'a>(&'a self, context: ScoreContext<'a>) -> BoxFuture<'a, Vec<Result<Score, Fault>>> {
        Box::pin(async move {
            match self.judge(context).await {
                Ok(Verdict { score, why, parts }) => {
                    let whole = Ok(Score::because(score, why));
                    let parts = parts.into_iter().map(|(score, why)| Ok(Score::because(score, why)));
                    std::iter::once(whole).chain(parts).collect()
                }
                Err(fault) => vec![Err(fault); 1 + self.spec.form.criteria().len()],
            }
        })
    }
}

/// One question of a judge on its way.
struct Asking<'a> {
    judge: &'a Judge,
    bound: &'a Bound,
    session: Session,
    key: &'a str,
    ledger: &'a Ledger,
}

impl Asking<'_> {
    /// Asks until the answer holds a verdict, and writes every exchange down.
    async fn until_understood(
        self,
        mut messages: Vec<Message>,
        sampling: Map<String, Value>,
    ) -> Result<Arc<Answered>, Fault> {
        let spec = &self.judge.spec;
        let _slot = self.bound.slots.acquire().await.expect("a judge's semaphore is never closed");
        let mut asked = 0;
        loop {
            let reply =
                self.call(&messages, &sampling).await.map_err(|failure| self.unavailable(&messages, &failure))?;
            let text = reply.message.content.clone().unwrap_or_default();
            let message = Message::Assistant(reply.message);
            let mut record = self.judge.record(&self.bound.model, &messages, &message);
            record["response"]["usage"] = reply.usage.as_ref().map_or(Value::Null, |usage| json!(usage));
            let cut = reply.finish_reason == Some(FinishReason::Length) && spec.form.may_go_on(&text);
            let read = if cut { Err(CUT.to_owned()) } else { spec.form.read(&text) };
            match &read {
                Ok(verdict) => self.judge.add_verdict(&mut record, self.key, verdict),
                Err(problem) => drop(record.insert("problem".to_owned(), problem.as_str().into())),
            }
            self.ledger.note(Expense { usage: reply.usage, exchange: record.into() });
            let problem = match read {
                Ok(verdict) => return Ok(Arc::new(Answered { text, verdict })),
                Err(problem) => problem,
            };
            asked += 1;
            if asked > spec.max_retries {
                let times = if asked == 1 { "once".to_owned() } else { format!("{asked} times") };
                let problem = format!("no verdict in its answer, asked {times}: {problem}");
                return Err(fault(&problem).retryable(true));
            }
            tracing::debug!(judge = spec.name, problem, "a judge is asked again");
            // Some servers refuse a message without text.
            messages.extend(Some(message).filter(|_| !text.is_empty()));
            messages.push(Message::user(spec.form.reminder(&problem, spec.structured)));
        }
    }

    /// One call with its retries. An endpoint that refuses structured answers is asked without them from then on.
    async fn call(&self, messages: &[Message], sampling: &Map<String, Value>) -> Result<ChatReply, ChatFailure> {
        let structured = self.judge.spec.structured;
        if structured && self.bound.unstructured.load(Ordering::Relaxed) {
            return self.send(messages, &self.judge.sampling(false)).await;
        }
        match self.send(messages, sampling).await {
            Err(failure) if structured && failure.kind == FailureKind::Refused => {
                let reply = self.send(messages, &self.judge.sampling(false)).await?;
                tracing::warn!(judge = self.judge.spec.name, cause = %failure, "asked without response_format from now on");
                self.bound.unstructured.store(true, Ordering::Relaxed);
                Ok(reply)
            }
            outcome => outcome,
        }
    }

    async fn send(&self, messages: &[Message], sampling: &Map<String, Value>) -> Result<ChatReply, ChatFailure> {
        let call = ChatCall { model: &self.bound.model, messages, tools: &[], sampling, tokens: false };
        self.session.chat(&call).await
    }

    fn unavailable(&self, messages: &[Message], failure: &ChatFailure) -> Fault {
        let cause = failure.fault();
        let record = json!({
            "name": self.judge.spec.name,
            "request": {"model": self.bound.model, "messages": messages},
            "problem": cause.message,
        });
        self.ledger.note(Expense { usage: None, exchange: record });
        Fault { causes: cause.causes.clone(), ..fault(&cause.message) }
            .retryable(cause.retryable)
            .with_status(cause.status_code)
    }
}

fn fault(problem: &str) -> Fault {
    Fault::new(FaultClass::Judge, problem)
}
