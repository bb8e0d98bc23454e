//! Reading answers, plain or LaTeX, as expressions.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};

use super::{
    Reading,
    token::{Parsed, Token, drop_units, function, in_one_form, integer, tokens},
};

/// Longest answer that is read, in bytes.
const LONGEST: usize = 4096;
/// Deepest nesting that is read.
const DEEPEST: usize = 48;
/// A number-valued expression. A difference is a sum with a product by -1, a quotient a product with a power of -1.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Number(BigRational),
    Pi,
    Euler,
    Infinity,
    Variable(String),
    Sum(Vec<Expr>),
    Product(Vec<Expr>),
    Power(Box<Expr>, Box<Expr>),
    Function(&'static str, Box<Expr>),
}

/// What an answer as a whole can be.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Single(Expr),
    /// In braces, or several answers with commas between them: order does not matter.
    Set(Vec<Value>),
    /// In other brackets: a tuple or an interval.
    Ordered {
        open: char,
        close: char,
        items: Vec<Value>,
    },
    Union(Vec<Value>),
    Equation(Expr, Expr),
    /// Plain words, lowercased, single spaces.
    Words(String),
}

/// Reads a whole answer.
pub(super) fn parse(text: &str, reading: Reading) -> Parsed<Value> {
    if text.len() > LONGEST {
        return Err(format!("longer than {LONGEST} bytes"));
    }
    let text = unwrap(text);
    if let Some(words) = words(text) {
        return Ok(Value::Words(words));
    }
    let mut tokens = tokens(text)?;
    if reading.drop_units {
        drop_units(&mut tokens);
    }
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let value = parser.answer()?;
    if parser.at < tokens.len() {
        return Err("something is left over behind the expression".to_owned());
    }
    Ok(value)
}

/// Drops what wraps an answer without being part of it.
fn unwrap(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let before = text;
        text = text.strip_suffix('.').unwrap_or(text).trim();
        for (open, close) in [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\boxed{", "}")] {
            if let Some(inner) = text.strip_prefix(open).and_then(|text| text.strip_suffix(close))
                && !(open.ends_with('$') && inner.contains('$'))
                && (open != "\\boxed{" || super::super::boxed(text) == Some(inner))
            {
                text = inner.trim();
            }
        }
        if text == before {
            return text;
        }
    }
}

/// An answer in words: in `\text{…}` as a whole, or letters and spaces with a word that is neither a product of
/// variables nor a name of mathematics.
fn words(text: &str) -> Option<String> {
    let inner = ["\\text{", "\\textbf{", "\\mathrm{", "\\mbox{", "\\textit{"]
        .iter()
        .find_map(|command| text.strip_prefix(command)?.strip_suffix('}'));
    if let Some(inner) = inner
        && !inner.contains(['{', '}', '\\'])
        && inner.chars().any(char::is_alphabetic)
    {
        return Some(in_one_form(inner.trim_matches(['(', ')'])));
    }
    let wordy = text.chars().all(|character| character.is_alphabetic() || matches!(character, ' ' | '\'' | '-'));
    let long = |word: &str| word.chars().count() >= 3 && function(word).is_none();
    (wordy && !text.starts_with('-') && text.split([' ', '-']).any(long)).then(|| in_one_form(text))
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, token: &Token) -> bool {
        let taken = self.peek() == Some(token);
        self.at += usize::from(taken);
        taken
    }

    fn mark(&mut self, mark: char) -> bool {
        self.take(&Token::Mark(mark))
    }

    fn expect(&mut self, token: &Token) -> Parsed<()> {
        if self.take(token) { Ok(()) } else { Err("a bracket is not closed".to_owned()) }
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEEPEST {
            return Err(format!("nested deeper than {DEEPEST}"));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Answers with commas between them, or one.
    fn answer(&mut self) -> Parsed<Value> {
        let mut values = vec![self.union()?];
        while self.mark(',')
            || self.mark(';')
            || self.take(&Token::Text("and".to_owned()))
            || self.take(&Token::Text("or".to_owned()))
        {
            values.push(self.union()?);
        }
        Ok(if values.len() == 1 { values.remove(0) } else { Value::Set(values) })
    }

    fn union(&mut self) -> Parsed<Value> {
        let mut values = vec![self.value()?];
        while self.take(&Token::Union) {
            values.push(self.value()?);
        }
        Ok(if values.len() == 1 { values.remove(0) } else { Value::Union(values) })
    }

    fn value(&mut self) -> Parsed<Value> {
        if let Some(list) = self.deeper(Self::list)? {
            return Ok(list);
        }
        if let Some(Token::Text(words)) = self.peek() {
            let words = words.clone();
            self.at += 1;
            return Ok(Value::Words(words));
        }
        let left = self.sum()?;
        if !self.mark('=') {
            return Ok(Value::Single(left));
        }
        // A chain of equations says what its ends are.
        let mut right = self.sum()?;
        while self.mark('=') {
            right = self.sum()?;
        }
        Ok(Value::Equation(left, right))
    }

    /// A bracketed list, unless the bracket only groups.
    fn list(&mut self) -> Parsed<Option<Value>> {
        let start = self.at;
        let open = match self.peek() {
            Some(Token::Open(open)) => *open,
            Some(Token::Begin) => '{',
            _ => return Ok(None),
        };
        let bare = self.peek() == Some(&Token::Begin);
        self.at += 1;
        let mut items = Vec::new();
        let close = loop {
            match self.peek() {
                Some(Token::Close(close)) if items.is_empty() && !bare => break *close,
                Some(Token::End) if items.is_empty() && bare => break '}',
                _ => {}
            }
            // What does not read as a list may still read as an expression.
            let Ok(item) = self.value() else {
                self.at = start;
                return Ok(None);
            };
            items.push(item);
            match self.peek() {
                Some(Token::Mark(',' | ';')) => self.at += 1,
                Some(Token::Close(close)) if !bare => break *close,
                Some(Token::End) if bare => break '}',
                _ => {
                    self.at = start;
                    return Ok(None);
                }
            }
        };
        self.at += 1;
        let ends =
            matches!(self.peek(), None | Some(Token::Mark(',' | ';') | Token::Close(_) | Token::End | Token::Union));
        let groups = items.len() == 1 && (open == '(' || bare);
        if groups || !ends {
            self.at = start;
            return Ok(None);
        }
        if open == '{' || bare {
            return Ok(Some(Value::Set(items)));
        }
        Ok(Some(Value::Ordered { open, close, items }))
    }

    fn sum(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let mut terms = Vec::new();
            loop {
                let negative = parser.sign();
                let term = parser.product()?;
                terms.push(if negative { negate(term) } else { term });
                if !matches!(parser.peek(), Some(Token::Mark('+' | '-'))) {
                    break;
                }
            }
            Ok(if terms.len() == 1 { terms.remove(0) } else { Expr::Sum(terms) })
        })
    }

    /// Reads signs; whether they make a minus.
    fn sign(&mut self) -> bool {
        let mut negative = false;
        loop {
            if self.mark('-') {
                negative = !negative;
            } else if !self.mark('+') {
                return negative;
            }
        }
    }

    fn product(&mut self) -> Parsed<Expr> {
        let mut factors = vec![self.mixed()?];
        loop {
            if self.mark('*') {
                let negative = self.sign();
                let factor = self.power()?;
                factors.push(if negative { negate(factor) } else { factor });
            } else if self.mark('/') {
                let negative = self.sign();
                let divisor = invert(self.power()?);
                factors.push(if negative { negate(divisor) } else { divisor });
            } else if self.starts_factor() {
                if matches!(self.peek(), Some(Token::Number(_))) {
                    return Err("two numbers side by side".to_owned());
                }
                factors.push(self.power()?);
            } else {
                return Ok(if factors.len() == 1 { factors.remove(0) } else { Expr::Product(factors) });
            }
        }
    }

    /// A factor, or a mixed number: `1 1/2`, `1\frac{1}{2}`.
    fn mixed(&mut self) -> Parsed<Expr> {
        let whole = match self.peek() {
            Some(Token::Number(whole)) if whole.is_integer() => whole.clone(),
            _ => return self.power(),
        };
        match &self.tokens[self.at + 1..] {
            [Token::Number(part), Token::Mark('/'), Token::Number(over), ..]
                if part.is_integer() && over.is_integer() && !over.is_zero() =>
            {
                self.at += 4;
                Ok(Expr::Number(whole + part / over))
            }
            [
                Token::Frac,
                Token::Begin,
                Token::Number(part),
                Token::End,
                Token::Begin,
                Token::Number(over),
                Token::End,
                ..,
            ] if part.is_integer() && over.is_integer() && !over.is_zero() => {
                self.at += 8;
                Ok(Expr::Number(whole + part / over))
            }
            _ => self.power(),
        }
    }

    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Open(open)) => *open != '{',
            Some(
                Token::Number(_)
                | Token::Variable(_)
                | Token::Function(_)
                | Token::Pi
                | Token::Euler
                | Token::Infinity
                | Token::Frac
                | Token::Sqrt
                | Token::Begin
                | Token::Text(_),
            ) => true,
            _ => false,
        }
    }

    fn power(&mut self) -> Parsed<Expr> {
        let mut base = self.primary()?;
        loop {
            if self.mark('!') {
                base = Expr::Function("factorial", Box::new(base));
            } else if self.mark('%') {
                base = Expr::Product(vec![base, Expr::Number(BigRational::new(BigInt::one(), BigInt::from(100)))]);
            } else {
                break;
            }
        }
        if !self.mark('^') {
            return Ok(base);
        }
        let exponent = self.deeper(Self::exponent)?;
        Ok(Expr::Power(Box::new(base), Box::new(exponent)))
    }

    fn exponent(&mut self) -> Parsed<Expr> {
        let negative = self.sign();
        let exponent = self.power()?;
        Ok(if negative { negate(exponent) } else { exponent })
    }

    fn primary(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let Some(token) = parser.peek().cloned() else { return Err("something is missing at the end".to_owned()) };
            parser.at += 1;
            Ok(match token {
                Token::Number(number) => Expr::Number(number),
                Token::Variable(name) => Expr::Variable(name),
                Token::Text(words) => Expr::Variable(format!("text {words}")),
                Token::Pi => Expr::Pi,
                Token::Euler => Expr::Euler,
                Token::Infinity => Expr::Infinity,
                Token::Open(open @ ('(' | '[')) => {
                    let inner = parser.sum()?;
                    parser.expect(&Token::Close(if open == '(' { ')' } else { ']' }))?;
                    inner
                }
                Token::Begin => {
                    let inner = parser.sum()?;
                    parser.expect(&Token::End)?;
                    inner
                }
                Token::Mark('|') => {
                    let inner = parser.sum()?;
                    parser.expect(&Token::Mark('|'))?;
                    Expr::Function("abs", Box::new(inner))
                }
                Token::Frac => {
                    let numerator = parser.primary()?;
                    Expr::Product(vec![numerator, invert(parser.primary()?)])
                }
                Token::Sqrt => {
                    let mut degree = Expr::Number(integer(2));
                    if parser.take(&Token::Open('[')) {
                        degree = parser.sum()?;
                        parser.expect(&Token::Close(']'))?;
                    }
                    Expr::Power(Box::new(parser.primary()?), Box::new(invert(degree)))
                }
                Token::Function(name) => parser.function(name)?,
                _ => return Err("a sign where a number is expected".to_owned()),
            })
        })
    }

    fn function(&mut self, name: &'static str) -> Parsed<Expr> {
        let mut base = None;
        if self.mark('_') {
            base = Some(self.primary()?);
        }
        let exponent = if self.mark('^') { Some(self.deeper(Self::exponent)?) } else { None };
        if exponent.as_ref().is_some_and(|exponent| *exponent == negate(Expr::Number(integer(1)))) {
            return Err(format!("`{name}^-1` is read in two ways"));
        }
        let bracketed = matches!(self.peek(), Some(Token::Open(_) | Token::Begin | Token::Mark('|')));
        let mut argument = self.power_or_primary(bracketed)?;
        // `sin 2x` takes the whole product.
        while !bracketed && matches!(self.peek(), Some(Token::Variable(_) | Token::Pi | Token::Euler)) {
            argument = Expr::Product(vec![argument, self.power()?]);
        }
        let value = match (name, base) {
            ("exp", None) => Expr::Power(Box::new(Expr::Euler), Box::new(argument)),
            ("log" | "lg", Some(base)) => {
                let (top, bottom) = (Expr::Function("ln", Box::new(argument)), Expr::Function("ln", Box::new(base)));
                Expr::Product(vec![top, invert(bottom)])
            }
            (_, None) => Expr::Function(name, Box::new(argument)),
            (_, Some(_)) => return Err(format!("`{name}` with an index")),
        };
        Ok(match exponent {
            Some(exponent) => Expr::Power(Box::new(value), Box::new(exponent)),
            None => value,
        })
    }

    fn power_or_primary(&mut self, bracketed: bool) -> Parsed<Expr> {
        if bracketed { self.primary() } else { self.power() }
    }
}

pub(super) fn negate(expr: Expr) -> Expr {
    match expr {
        Expr::Number(number) => Expr::Number(-number),
        expr => Expr::Product(vec![Expr::Number(integer(-1)), expr]),
    }
}

fn invert(expr: Expr) -> Expr {
    Expr::Power(Box::new(expr), Box::new(Expr::Number(integer(-1))))
}
