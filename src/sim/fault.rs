//! Faults on purpose: which kinds there are, how shares are written, and which attempt gets which.

use std::str::FromStr;

use super::hash::Hash;

/// What goes wrong with an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// 429 with `Retry-After`.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 503, as an overloaded engine.
    Overloaded,
    /// The connection is reset before any byte of an answer.
    Reset,
    /// Accepted, never answered; the connection stays open.
    Hang,
    /// 200 with a body that is not JSON (in a stream: an event that is not).
    Malformed,
    /// The body ends in the middle, and the connection with it.
    Cut,
    /// A right answer whose headers come late.
    SlowHeaders,
    /// A right answer whose token counts are wrong.
    WrongUsage,
    /// An answer with tokens in which a log-probability is missing; on `generate`, and on `chat` unless it streams.
    WrongTokens,
    /// 400, the context window is exceeded.
    Overflow,
    /// An empty completion.
    Empty,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::TooManyRequests,
        Self::InternalError,
        Self::Overloaded,
        Self::Reset,
        Self::Hang,
        Self::Malformed,
        Self::Cut,
        Self::SlowHeaders,
        Self::WrongUsage,
        Self::WrongTokens,
        Self::Overflow,
        Self::Empty,
    ];

    /// How users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TooManyRequests => "429",
            Self::InternalError => "500",
            Self::Overloaded => "503",
            Self::Reset => "reset",
            Self::Hang => "hang",
            Self::Malformed => "malformed",
            Self::Cut => "cut",
            Self::SlowHeaders => "slow-headers",
            Self::WrongUsage => "wrong-usage",
            Self::WrongTokens => "wrong-tokens",
            Self::Overflow => "overflow",
            Self::Empty => "empty",
        }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /inference/v1/generate`
    Generate,
    /// `GET /v1/models`
    Models,
    /// `GET /health`
    Health,
    /// `GET /metrics`
    Metrics,
    /// `GET /version`
    Version,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
}

impl Route {
    /// Every route.
    pub const ALL: [Self; 9] = [
        Self::Chat,
        Self::Completions,
        Self::Generate,
        Self::Models,
        Self::Health,
        Self::Metrics,
        Self::Version,
        Self::Tokenize,
        Self::Detokenize,
    ];

    /// How users write it in a fault rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
            Self::Models => "models",
            Self::Health => "health",
            Self::Metrics => "metrics",
            Self::Version => "version",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }

    /// Its path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Generate => "/inference/v1/generate",
            Self::Models => "/v1/models",
            Self::Health => "/health",
            Self::Metrics => "/metrics",
            Self::Version => "/version",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
        }
    }

    /// Whether it is called with GET; the others with POST.
    pub(super) fn is_get(self) -> bool {
        matches!(self, Self::Models | Self::Health | Self::Metrics | Self::Version)
    }

    /// Whether it runs the model.
    fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Generate)
    }
}

/// A share of the attempts on some routes that go wrong in one way: `KIND:SHARE` or `KIND:SHARE@ROUTE`.
///
/// Without a route it is all that run the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRule {
    /// What goes wrong.
    pub kind: FaultKind,
    /// How often, 0 to 1.
    pub share: f64,
    /// Where; `None` is chat, completions and generate.
    pub route: Option<Route>,
}

/// A fault rule that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultRuleError {
    /// No colon.
    #[error("fault `{0}` is not of the form KIND:SHARE or KIND:SHARE@ROUTE")]
    Form(String),
    /// No such kind.
    #[error("unknown fault kind `{0}`, choose one of {kinds}", kinds = list(FaultKind::ALL.map(FaultKind::name)))]
    Kind(String),
    /// Not a share.
    #[error("fault share `{0}` is not a number between 0 and 1")]
    Share(String),
    /// No such route.
    #[error("unknown route `{0}`, choose one of {routes}", routes = list(Route::ALL.map(Route::name)))]
    Route(String),
}

fn list<const LENGTH: usize>(names: [&str; LENGTH]) -> String {
    names.join(", ")
}

impl FromStr for FaultRule {
    type Err = FaultRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').ok_or_else(|| FaultRuleError::Form(text.to_owned()))?;
        let (share, route) = match rest.split_once('@') {
            Some((share, route)) => (share, Some(route)),
            None => (rest, None),
        };
        let kind = FaultKind::ALL
            .into_iter()
            .find(|candidate| candidate.name() == kind)
            .ok_or_else(|| FaultRuleError::Kind(kind.to_owned()))?;
        let share = share
            .parse::<f64>()
            .ok()
            .filter(|value| (0.0..=1.0).contains(value))
            .ok_or_else(|| FaultRuleError::Share(share.to_owned()))?;
        let route = match route {
            None => None,
            Some(name) => Some(
                Route::ALL
                    .into_iter()
                    .find(|candidate| candidate.name() == name || candidate.path() == name)
                    .ok_or_else(|| FaultRuleError::Route(name.to_owned()))?,
            ),
        };
        Ok(Self { kind, share, route })
    }
}

impl FaultRule {
    /// A rule for both routes that run the model.
    pub fn new(kind: FaultKind, share: f64) -> Self {
        Self { kind, share, route: None }
    }

    /// Whether it is for this route.
    pub(super) fn covers(&self, route: Route) -> bool {
        self.route.map_or(route.generates(), |own| own == route)
    }
}

/// The fault of one attempt: the rules divide 0..1 among them, and the attempt's own draw falls somewhere.
pub(super) fn choose(rules: &[FaultRule], route: Route, attempt: Hash) -> Option<FaultKind> {
    let mut draw = attempt.number(0xfa).unit();
    for rule in rules.iter().filter(|rule| rule.covers(route)) {
        if draw < rule.share {
            return Some(rule.kind);
        }
        draw -= rule.share;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        assert_eq!("429:0.1".parse(), Ok(FaultRule::new(FaultKind::TooManyRequests, 0.1)));
        assert_eq!(
            "reset:1@models".parse(),
            Ok(FaultRule { kind: FaultKind::Reset, share: 1.0, route: Some(Route::Models) })
        );
        assert_eq!(
            "cut:0.5@/v1/completions".parse(),
            Ok(FaultRule { kind: FaultKind::Cut, share: 0.5, route: Some(Route::Completions) })
        );
        for kind in FaultKind::ALL {
            assert_eq!(format!("{}:0", kind.name()).parse(), Ok(FaultRule::new(kind, 0.0)));
        }
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        let check = |text: &str, expected: &str| {
            let error = text.parse::<FaultRule>().expect_err("should be refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("429", "KIND:SHARE");
        check("418:0.1", "unknown fault kind `418`, choose one of 429, 500, 503, reset");
        check("429:1.1", "`1.1` is not a number between 0 and 1");
        check("429:much", "`much`");
        check("429:NaN", "`NaN`");
        check("429:0.1@moon", "unknown route `moon`");
    }

    #[test]
    fn shares_hold_and_rules_do_not_overlap() {
        let rules = [FaultRule::new(FaultKind::TooManyRequests, 0.1), FaultRule::new(FaultKind::Cut, 0.2)];
        let drawn: Vec<_> = (0..10_000).map(|index| choose(&rules, Route::Chat, Hash::new(3).number(index))).collect();
        let count = |kind| drawn.iter().filter(|fault| **fault == Some(kind)).count();
        assert!((900..1_100).contains(&count(FaultKind::TooManyRequests)));
        assert!((1_850..2_150).contains(&count(FaultKind::Cut)));
        assert_eq!(choose(&rules, Route::Models, Hash::new(3)), None);
        let all = [FaultRule::new(FaultKind::Reset, 1.0)];
        assert!((0..1_000).all(|index| choose(&all, Route::Chat, Hash::new(9).number(index)).is_some()));
    }
}
