//! The second look: values of an expression at a few points, in floating point.

use num_traits::ToPrimitive;

use super::parse::Expr;

/// How many points are looked at.
pub(super) const POINTS: u32 = 6;

/// The value at one of the points, not a number where there is none. Variables have the same value at the same point
/// in every expression; half of the points have negative values among them.
pub(super) fn value(expr: &Expr, point: u32) -> f64 {
    match expr {
        Expr::Number(number) => number.to_f64().unwrap_or(f64::NAN),
        Expr::Pi => std::f64::consts::PI,
        Expr::Euler => std::f64::consts::E,
        Expr::Infinity => f64::NAN,
        Expr::Variable(name) if name == "i" => f64::NAN,
        Expr::Variable(name) => coordinate(name, point),
        Expr::Sum(terms) => terms.iter().map(|term| value(term, point)).sum(),
        Expr::Product(factors) => factors.iter().map(|factor| value(factor, point)).product(),
        Expr::Power(base, exponent) => power(value(base, point), value(exponent, point)),
        Expr::Function(name, argument) => function(name, value(argument, point)),
    }
}

/// Whether two values are different beyond rounding; `None` when either is not finite.
pub(super) fn differ(left: f64, right: f64) -> Option<bool> {
    const CLOSE: f64 = 1e-6;
    let finite = left.is_finite() && right.is_finite();
    finite.then(|| (left - right).abs() > CLOSE * left.abs().max(right.abs()).max(1e-9))
}

fn coordinate(name: &str, point: u32) -> f64 {
    // FNV-1a, to spread the names.
    let hash = name
        .bytes()
        .chain(point.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let size = 0.3 + (hash >> 40) as f64 / (1_u64 << 24) as f64 * 1.9;
    if point >= POINTS / 2 && hash & 1 == 1 { -size } else { size }
}

fn power(base: f64, exponent: f64) -> f64 {
    if base >= 0.0 || exponent.fract() == 0.0 {
        return base.powf(exponent);
    }
    // An odd root of a negative number is real.
    let degree = (1.0 / exponent).round();
    if degree % 2.0 != 0.0 && (degree * exponent - 1.0).abs() < 1e-12 { -(-base).powf(exponent) } else { f64::NAN }
}

fn function(name: &str, argument: f64) -> f64 {
    match name {
        "sin" => argument.sin(),
        "cos" => argument.cos(),
        "tan" => argument.tan(),
        "cot" => argument.tan().recip(),
        "sec" => argument.cos().recip(),
        "csc" => argument.sin().recip(),
        "arcsin" => argument.asin(),
        "arccos" => argument.acos(),
        "arctan" => argument.atan(),
        "sinh" => argument.sinh(),
        "cosh" => argument.cosh(),
        "tanh" => argument.tanh(),
        "ln" => argument.ln(),
        "log" | "lg" => argument.log10(),
        "abs" => argument.abs(),
        "floor" => argument.floor(),
        "ceil" => argument.ceil(),
        "factorial" if argument >= 0.0 && argument.fract() == 0.0 && argument <= 170.0 => {
            (1..=argument as u32).map(f64::from).product()
        }
        _ => f64::NAN,
    }
}
