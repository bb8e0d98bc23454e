//! Reading answers, plain or LaTeX, as expressions.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Zero};

use super::Reading;

/// Longest answer that is read, in bytes.
const LONGEST: usize = 4096;
/// Deepest nesting that is read.
const DEEPEST: usize = 48;
/// Most digits of one number.
const DIGITS: usize = 1000;

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

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(BigRational),
    Variable(String),
    Function(&'static str),
    Pi,
    Euler,
    Infinity,
    Frac,
    Sqrt,
    Union,
    /// A bracket that is part of the mathematics; `{` is the escaped one.
    Open(char),
    Close(char),
    /// A bare brace of LaTeX.
    Begin,
    End,
    Text(String),
    Mark(char),
}

type Parsed<T> = Result<T, String>;

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

fn in_one_form(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

fn function(name: &str) -> Option<Token> {
    const FUNCTIONS: [&str; 19] = [
        "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "log",
        "exp", "abs", "floor", "ceil", "lg",
    ];
    Some(match name {
        "pi" => Token::Pi,
        "sqrt" => Token::Sqrt,
        "infty" | "infinity" | "inf" | "oo" => Token::Infinity,
        _ => Token::Function(FUNCTIONS.iter().find(|known| **known == name)?),
    })
}

fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        rest = match first {
            _ if first.is_whitespace() || matches!(first, '~' | '$' | '°' | '∘') => after,
            '0'..='9' | '.' => number(rest, &mut tokens)?,
            '\\' => command(after, &mut tokens)?,
            '{' => push(&mut tokens, Token::Begin, after),
            '}' => push(&mut tokens, Token::End, after),
            '(' | '[' => push(&mut tokens, Token::Open(first), after),
            ')' | ']' => push(&mut tokens, Token::Close(first), after),
            '∪' => push(&mut tokens, Token::Union, after),
            '∞' => push(&mut tokens, Token::Infinity, after),
            'π' => push(&mut tokens, Token::Pi, after),
            '√' => push(&mut tokens, Token::Sqrt, after),
            '*' if after.starts_with('*') => push(&mut tokens, Token::Mark('^'), &after[1..]),
            '^' if degree(after).is_some() => degree(after).unwrap_or(after),
            '+' | '*' | '/' | '^' | '_' | '=' | ',' | ';' | '%' | '!' | '|' => {
                push(&mut tokens, Token::Mark(first), after)
            }
            '-' | '−' | '–' => push(&mut tokens, Token::Mark('-'), after),
            '×' | '·' | '∗' | '⋅' => push(&mut tokens, Token::Mark('*'), after),
            '÷' => push(&mut tokens, Token::Mark('/'), after),
            '²' => {
                tokens.extend([Token::Mark('^'), Token::Number(integer(2))]);
                after
            }
            _ if first.is_alphabetic() => letters(rest, &mut tokens)?,
            _ => return Err(format!("`{first}` is not understood")),
        };
    }
    Ok(tokens)
}

fn push<'a>(tokens: &mut Vec<Token>, token: Token, rest: &'a str) -> &'a str {
    tokens.push(token);
    rest
}

/// What follows a degree sign that is written as an exponent.
fn degree(text: &str) -> Option<&str> {
    let text = text.trim_start();
    ["{\\circ}", "\\circ", "{\\degree}", "\\degree", "°", "∘"].iter().find_map(|sign| text.strip_prefix(sign))
}

fn number<'a>(text: &'a str, tokens: &mut Vec<Token>) -> Parsed<&'a str> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    let mut literal = text[..end].to_owned();
    // Groups of three behind a comma, written in any of LaTeX's ways, belong to the number.
    if (1..=3).contains(&end) {
        loop {
            let rest = &text[end..];
            let Some(comma) = ["{,}", ",\\!", "\\!,", "\\,", ","].iter().find(|comma| rest.starts_with(**comma)) else {
                break;
            };
            let group = &rest[comma.len()..];
            if digits(group) != 3 {
                break;
            }
            literal.push_str(&group[..3]);
            end += comma.len() + 3;
        }
    }
    let mut places = 0;
    if let Some(part) = text[end..].strip_prefix('.') {
        places = digits(part);
        if places > 0 || !literal.is_empty() {
            literal.push_str(&part[..places]);
            end += 1 + places;
        }
    }
    if literal.is_empty() {
        return Err("a point without digits".to_owned());
    }
    if literal.len() > DIGITS {
        return Err(format!("a number of more than {DIGITS} digits"));
    }
    let mut exponent = 0_i32;
    if let Some(tail) = text[end..].strip_prefix(['e', 'E']) {
        let sign = usize::from(tail.starts_with(['-', '+']));
        let length = digits(&tail[sign..]);
        if length > 0 {
            exponent = tail[..sign + length]
                .parse()
                .ok()
                .filter(|exponent: &i32| exponent.unsigned_abs() <= DIGITS as u32)
                .ok_or_else(|| "an exponent that is too large".to_owned())?;
            end += 1 + sign + length;
        }
    }
    let whole: BigInt = literal.parse().map_err(|_| "a number that is not understood".to_owned())?;
    let scale = exponent - i32::try_from(places).unwrap_or(i32::MAX);
    let power = BigInt::from(10).pow(scale.unsigned_abs());
    let value = if scale < 0 { BigRational::new(whole, power) } else { BigRational::from(whole * power) };
    tokens.push(Token::Number(value));
    Ok(&text[end..])
}

fn letters<'a>(text: &'a str, tokens: &mut Vec<Token>) -> Parsed<&'a str> {
    let end = text.find(|character: char| !character.is_alphabetic()).unwrap_or(text.len());
    let (word, mut rest) = text.split_at(end);
    if let Some(token) = function(word) {
        return Ok(push(tokens, token, rest));
    }
    if word.chars().count() > 3 {
        return Err(format!("`{}` is not understood", super::super::text::excerpt(word)));
    }
    let mut left = word;
    while let Some(letter) = left.chars().next() {
        left = &left[letter.len_utf8()..];
        if left.is_empty() {
            rest = variable(letter.to_string(), rest, tokens);
        } else {
            tokens.push(if letter == 'e' { Token::Euler } else { Token::Variable(letter.to_string()) });
        }
    }
    Ok(rest)
}

/// A variable with its index, if it has one.
fn variable<'a>(name: String, rest: &'a str, tokens: &mut Vec<Token>) -> &'a str {
    if let Some(index) = rest.strip_prefix('_') {
        let inner = index.strip_prefix('{').and_then(|index| index.split_once('}'));
        let plain = index.find(|character: char| !character.is_alphanumeric()).unwrap_or(index.len());
        let (index, after) = inner.unwrap_or_else(|| index.split_at(plain));
        if !index.is_empty() && index.chars().all(char::is_alphanumeric) {
            return push(tokens, Token::Variable(format!("{name}_{index}")), after);
        }
    }
    push(tokens, if name == "e" { Token::Euler } else { Token::Variable(name) }, rest)
}

fn command<'a>(text: &'a str, tokens: &mut Vec<Token>) -> Parsed<&'a str> {
    let end = text.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(text.len());
    if end == 0 {
        let Some(sign) = text.chars().next() else { return Err("a backslash at the end".to_owned()) };
        let rest = &text[sign.len_utf8()..];
        return match sign {
            ',' | ';' | ':' | '!' | ' ' | '\\' | '$' => Ok(rest),
            '{' => Ok(push(tokens, Token::Open('{'), rest)),
            '}' => Ok(push(tokens, Token::Close('}'), rest)),
            '%' => Ok(push(tokens, Token::Mark('%'), rest)),
            '|' => Ok(push(tokens, Token::Mark('|'), rest)),
            _ => Err(format!("`\\{sign}` is not understood")),
        };
    }
    let (name, rest) = text.split_at(end);
    let token = match name {
        "left" | "right" | "big" | "Big" | "bigg" | "Bigg" | "bigl" | "bigr" | "displaystyle" | "quad" | "qquad"
        | "circ" | "degree" | "mathbf" | "mathit" | "mathsf" | "limits" => return Ok(rest),
        "mathrm" | "operatorname" => {
            let inner = rest.trim_start().strip_prefix('{').and_then(|rest| rest.split_once('}'));
            match inner {
                Some((inner, rest)) if function(inner.trim()).is_none() && inner.trim().len() > 1 => {
                    return Ok(push(tokens, Token::Text(in_one_form(inner)), rest));
                }
                _ => return Ok(rest),
            }
        }
        "text" | "textbf" | "textit" | "textrm" | "mbox" => {
            let inner = rest.trim_start().strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let (inner, rest) = inner.ok_or_else(|| format!("`\\{name}` without braces"))?;
            return Ok(push(tokens, Token::Text(in_one_form(inner)), rest));
        }
        "frac" | "dfrac" | "tfrac" | "cfrac" => {
            tokens.push(Token::Frac);
            // Without braces each digit is an argument of its own.
            let (mut rest, mut arguments) = (rest.trim_start(), 0);
            while arguments < 2
                && let Some(digit) = rest.chars().next().and_then(|digit| digit.to_digit(10))
            {
                rest = push(tokens, Token::Number(integer(i64::from(digit))), &rest[1..]);
                arguments += 1;
            }
            return Ok(rest);
        }
        "cdot" | "times" | "ast" => Token::Mark('*'),
        "div" => Token::Mark('/'),
        "cup" => Token::Union,
        "lbrace" => Token::Open('{'),
        "rbrace" => Token::Close('}'),
        "lvert" | "rvert" | "vert" => Token::Mark('|'),
        "pm" | "mp" => return Err("`±` stands for two answers: write both".to_owned()),
        _ => match function(name) {
            Some(token) => token,
            None if GREEK.contains(&name) => return Ok(variable(name.to_owned(), rest, tokens)),
            None => return Err(format!("`\\{name}` is not understood")),
        },
    };
    Ok(push(tokens, token, rest))
}

const GREEK: [&str; 22] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "varphi",
    "psi",
    "omega",
];

/// Units in plain letters; read as variables otherwise.
const UNITS: [&str; 22] = [
    "mm", "cm", "m", "km", "in", "ft", "yd", "mi", "g", "kg", "mg", "lb", "oz", "s", "ms", "min", "h", "hr", "L", "mL",
    "cm^2", "m^2",
];

/// Drops units at the end: `\text{…}` behind something, or a plain unit behind a number.
fn drop_units(tokens: &mut Vec<Token>) {
    let mut end = tokens.len();
    // An exponent belongs to the unit in front of it.
    if let [.., Token::Text(_) | Token::Variable(_), Token::Mark('^'), Token::Number(_)] = tokens[..] {
        end -= 2;
    }
    if end >= 2 && matches!(tokens[end - 1], Token::Text(_)) {
        tokens.truncate(end - 1);
        return;
    }
    let mut start = end;
    let mut unit = String::new();
    while start > 0
        && let Token::Variable(name) = &tokens[start - 1]
    {
        unit.insert_str(0, name);
        start -= 1;
    }
    if start > 0 && matches!(tokens[start - 1], Token::Number(_)) && UNITS.contains(&unit.as_str()) {
        tokens.truncate(start);
    }
}

pub(super) fn integer(value: i64) -> BigRational {
    BigRational::from(BigInt::from(value))
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
