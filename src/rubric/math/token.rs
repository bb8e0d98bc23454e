//! The words of an answer, plain or LaTeX: numbers, names, signs, brackets.

use num_bigint::BigInt;
use num_rational::BigRational;

/// Most digits of one number.
const DIGITS: usize = 1000;

/// One word or sign.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
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

/// What was read, or why it is not understood.
pub(super) type Parsed<T> = Result<T, String>;

/// Takes an answer apart.
pub(super) fn tokens(text: &str) -> Parsed<Vec<Token>> {
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
pub(super) fn drop_units(tokens: &mut Vec<Token>) {
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

/// The word of mathematics that a name is.
pub(super) fn function(name: &str) -> Option<Token> {
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

/// Single spaces, lower case.
pub(super) fn in_one_form(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// A whole number.
pub(super) fn integer(value: i64) -> BigRational {
    BigRational::from(BigInt::from(value))
}
