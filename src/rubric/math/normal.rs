//! The normal form of an expression: a quotient of polynomials with exact rational coefficients, over variables,
//! roots of primes, pi, e, i, and whatever else is left as it stands.
//!
//! Roots of different primes are linearly independent over the rationals (Besicovitch 1940), so that a difference which
//! holds nothing but these and variables is zero only when its normal form is.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_integer::Integer;
use num_rational::{BigRational, Ratio};
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::{parse::Expr, token::integer};

/// Most terms of a polynomial.
const TERMS: usize = 400;
/// Most bits of a numerator or denominator.
const BITS: u64 = 8192;
/// Most work for one answer: multiplications of terms, long coefficients counting for more.
const STEPS: usize = 20_000;
/// Largest power of a polynomial with several terms.
const POWER: i64 = 64;
/// Largest numerator or denominator of an exponent in a term.
const EXPONENT: i64 = 100_000;

type Outcome<T> = Result<T, String>;
type Exponent = Ratio<i64>;

/// What a term is a product of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Atom {
    /// The square root of -1.
    Imaginary,
    /// A root of a prime: its exponent lies between 0 and 1.
    Prime(u64),
    Pi,
    Euler,
    Variable(String),
    /// A power that cannot be worked out: its base and exponent.
    Power(Box<Quotient>, Box<Quotient>),
    Function(&'static str, Box<Quotient>),
}

type Term = BTreeMap<Atom, Exponent>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Polynomial(BTreeMap<Term, BigRational>);

/// A quotient of polynomials; the denominator is 1 unless it has several terms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quotient {
    top: Polynomial,
    bottom: Polynomial,
}

/// Works out normal forms within a budget.
pub(super) struct Workshop {
    steps: usize,
}

impl Workshop {
    pub(super) fn new() -> Self {
        Self { steps: STEPS }
    }

    /// The normal form of an expression.
    pub(super) fn normal(&mut self, expr: &Expr) -> Outcome<Quotient> {
        Ok(match expr {
            Expr::Number(number) => Quotient::number(checked(number.clone())?),
            Expr::Pi => Quotient::atom(Atom::Pi),
            Expr::Euler => Quotient::atom(Atom::Euler),
            Expr::Infinity => return Err("infinity in an expression".to_owned()),
            Expr::Variable(name) if name == "i" => Quotient::atom(Atom::Imaginary),
            Expr::Variable(name) => Quotient::atom(Atom::Variable(name.clone())),
            Expr::Sum(terms) => {
                let mut sum = Quotient::number(BigRational::zero());
                for term in terms {
                    let term = self.normal(term)?;
                    sum = self.add(&sum, &term)?;
                }
                sum
            }
            Expr::Product(factors) => {
                let mut product = Quotient::number(BigRational::one());
                for factor in factors {
                    let factor = self.normal(factor)?;
                    product = self.times(&product, &factor)?;
                }
                product
            }
            Expr::Power(base, exponent) => {
                let (base, exponent) = (self.normal(base)?, self.normal(exponent)?);
                self.power(base, exponent)?
            }
            Expr::Function(name, argument) => {
                let argument = self.normal(argument)?;
                self.function(name, argument)?
            }
        })
    }

    /// Whether two normal forms are the same quotient: `a/b = c/d` as `a d - c b = 0`.
    pub(super) fn same(&mut self, left: &Quotient, right: &Quotient) -> Outcome<bool> {
        let (one, other) = (self.multiply(&left.top, &right.bottom)?, self.multiply(&right.top, &left.bottom)?);
        Ok(one == other)
    }

    /// One normal form less another.
    pub(super) fn less(&mut self, left: &Quotient, right: &Quotient) -> Outcome<Quotient> {
        let minus = self.times(right, &Quotient::number(integer(-1)))?;
        self.add(left, &minus)
    }

    /// A normal form times a number.
    pub(super) fn scaled(&mut self, quotient: &Quotient, by: BigRational) -> Outcome<Quotient> {
        self.times(quotient, &Quotient::number(by))
    }

    fn add(&mut self, left: &Quotient, right: &Quotient) -> Outcome<Quotient> {
        if left.bottom == right.bottom {
            let top = sum(left.top.clone(), &right.top)?;
            return self.quotient(top, left.bottom.clone());
        }
        let top = sum(self.multiply(&left.top, &right.bottom)?, &self.multiply(&right.top, &left.bottom)?)?;
        let bottom = self.multiply(&left.bottom, &right.bottom)?;
        self.quotient(top, bottom)
    }

    fn times(&mut self, left: &Quotient, right: &Quotient) -> Outcome<Quotient> {
        let (top, bottom) = (self.multiply(&left.top, &right.top)?, self.multiply(&left.bottom, &right.bottom)?);
        self.quotient(top, bottom)
    }

    /// A quotient in which a bottom of one term is divided out, and the first coefficient of others is 1.
    fn quotient(&mut self, top: Polynomial, bottom: Polynomial) -> Outcome<Quotient> {
        let Some((term, coefficient)) = bottom.0.first_key_value() else { return Err("a division by zero".to_owned()) };
        if top == bottom {
            return Ok(Quotient::number(BigRational::one()));
        }
        if bottom.0.len() == 1 && term.is_empty() && coefficient.is_one() {
            return Ok(Quotient { top, bottom });
        }
        let divisor = match bottom.0.len() {
            1 => Polynomial::term(
                term.iter().map(|(atom, exponent)| (atom.clone(), -exponent)).collect(),
                coefficient.recip(),
            ),
            _ => Polynomial::term(Term::new(), coefficient.recip()),
        };
        let (top, bottom) = (self.multiply(&top, &divisor)?, self.multiply(&bottom, &divisor)?);
        Ok(Quotient { top, bottom })
    }

    fn inverse(&mut self, quotient: Quotient) -> Outcome<Quotient> {
        self.quotient(quotient.bottom, quotient.top)
    }

    fn multiply(&mut self, left: &Polynomial, right: &Polynomial) -> Outcome<Polynomial> {
        let mut product = Polynomial(BTreeMap::new());
        for (left, by) in &left.0 {
            for (right, with) in &right.0 {
                self.steps = self
                    .steps
                    .checked_sub(1 + (by.numer().bits() / 64) as usize)
                    .ok_or_else(|| "too much to work out".to_owned())?;
                let (term, coefficient) = join(left, right, product_of(by, with))?;
                product.put(term, coefficient);
            }
            if product.0.len() > TERMS {
                return Err(format!("more than {TERMS} terms"));
            }
        }
        for coefficient in product.0.values() {
            bounded(coefficient)?;
        }
        Ok(product)
    }

    fn power(&mut self, base: Quotient, exponent: Quotient) -> Outcome<Quotient> {
        let Some(number) = exponent.constant() else { return self.left_standing(base, exponent) };
        if number.is_integer() {
            let number = number.to_integer().to_i64().ok_or_else(|| "an exponent that is too large".to_owned())?;
            return self.whole_power(base, number);
        }
        match self.root(&base, &number)? {
            Some(root) => Ok(root),
            None => self.left_standing(base, exponent),
        }
    }

    fn whole_power(&mut self, base: Quotient, exponent: i64) -> Outcome<Quotient> {
        if exponent == 0 {
            return if base.is_zero() {
                Err("zero to the power of zero".to_owned())
            } else {
                Ok(Quotient::number(BigRational::one()))
            };
        }
        let base = if exponent < 0 { self.inverse(base)? } else { base };
        let times = exponent.unsigned_abs();
        // A power of a number is worked out at once, after a look at its size.
        if let Some(number) = base.constant() {
            return Ok(Quotient::number(number_power(&number, times)?));
        }
        // A standing power of a standing power: the exponents multiply.
        if let Some((Atom::Power(inner, by), one)) = base.single_atom()
            && one.is_one()
        {
            let exponent = self.times(by, &Quotient::number(integer(times as i64)))?;
            return self.power((**inner).clone(), exponent);
        }
        let single = base.bottom.0.len() == 1 && base.top.0.len() == 1;
        if times > POWER as u64 && !(single && times < EXPONENT as u64) {
            return Err(format!("a power above {POWER}"));
        }
        let (mut result, mut square, mut left) = (Quotient::number(BigRational::one()), base, times);
        while left > 0 {
            if left & 1 == 1 {
                result = self.times(&result, &square)?;
            }
            left >>= 1;
            if left > 0 {
                square = self.times(&square, &square)?;
            }
        }
        Ok(result)
    }

    /// A broken power of one term: of its number, and of its atoms where that holds for every value they can have.
    fn root(&mut self, base: &Quotient, exponent: &BigRational) -> Outcome<Option<Quotient>> {
        if base.is_zero() {
            return if exponent.is_negative() { Err("a division by zero".to_owned()) } else { Ok(Some(base.clone())) };
        }
        if base.top.0.len() != 1 || base.bottom != Polynomial::term(Term::new(), BigRational::one()) {
            return Ok(None);
        }
        let (Some(numerator), Some(denominator)) = (exponent.numer().to_i64(), exponent.denom().to_i64()) else {
            return Err("an exponent that is too large".to_owned());
        };
        if numerator.abs() > EXPONENT || denominator > 64 {
            return Ok(None);
        }
        let exponent = Exponent::new(numerator, denominator);
        let Some((term, coefficient)) = base.top.0.first_key_value() else { return Ok(None) };
        let mut result = Quotient::number(BigRational::one());
        let mut free = 0;
        for (atom, by) in term {
            let positive = matches!(atom, Atom::Prime(_) | Atom::Pi | Atom::Euler);
            // Of several factors that may be negative, or of an even power, the root is not the product of roots.
            if !positive && (!by.is_one() || matches!(atom, Atom::Imaginary)) {
                return Ok(None);
            }
            free += usize::from(!positive);
            let factor = match atom {
                Atom::Prime(prime) => prime_power(*prime, times(by, &exponent)?)?,
                _ => Quotient {
                    top: Polynomial::term(Term::from([(atom.clone(), times(by, &exponent)?)]), BigRational::one()),
                    ..Quotient::number(BigRational::one())
                },
            };
            result = self.times(&result, &factor)?;
        }
        if free > 1 || (free == 1 && coefficient.is_negative()) {
            return Ok(None);
        }
        let Some(number) = self.number_root(coefficient, exponent)? else { return Ok(None) };
        Ok(Some(self.times(&result, &number)?))
    }

    fn number_root(&mut self, number: &BigRational, exponent: Exponent) -> Outcome<Option<Quotient>> {
        let mut result = Quotient::number(BigRational::one());
        if number.is_negative() {
            // The real root where there is one; the square root of -1 otherwise.
            if exponent.denom().is_odd() {
                if exponent.numer().is_odd() {
                    result = Quotient::number(integer(-1));
                }
            } else if *exponent.denom() == 2 {
                let turn = self.whole_power(Quotient::atom(Atom::Imaginary), exponent.numer().rem_euclid(4))?;
                result = self.times(&result, &turn)?;
            } else {
                return Ok(None);
            }
        }
        for (part, exponent) in [(number.numer().abs(), exponent), (number.denom().clone(), -exponent)] {
            let Some(primes) = factor(part, *exponent.denom()) else { return Ok(None) };
            for (base, count) in primes {
                let exponent = times(&exponent, &Exponent::from(count))?;
                let power = if exponent.is_integer() {
                    self.whole_power(Quotient::number(BigRational::from(base)), exponent.to_integer())?
                } else {
                    match base.to_u64() {
                        Some(prime) => prime_power(prime, exponent)?,
                        None => return Ok(None),
                    }
                };
                result = self.times(&result, &power)?;
            }
        }
        Ok(Some(result))
    }

    fn left_standing(&mut self, base: Quotient, exponent: Quotient) -> Outcome<Quotient> {
        if base.constant().is_some_and(|base| base.is_one()) {
            return Ok(base);
        }
        Ok(Quotient::atom(Atom::Power(Box::new(base), Box::new(exponent))))
    }

    fn function(&mut self, name: &'static str, argument: Quotient) -> Outcome<Quotient> {
        let number = argument.constant();
        let known = match (name, &number) {
            ("abs", Some(number)) => Some(number.abs()),
            ("floor", Some(number)) => Some(number.floor()),
            ("ceil", Some(number)) => Some(number.ceil()),
            ("ln" | "log" | "lg", Some(number)) if number.is_one() => Some(BigRational::zero()),
            ("sin" | "tan" | "arcsin" | "arctan" | "sinh" | "tanh", Some(number)) if number.is_zero() => {
                Some(BigRational::zero())
            }
            ("cos" | "cosh", Some(number)) if number.is_zero() => Some(BigRational::one()),
            ("ln", None) if argument == Quotient::atom(Atom::Euler) => Some(BigRational::one()),
            ("factorial", Some(number)) => {
                let count =
                    number.is_integer().then(|| number.to_integer().to_u32()).flatten().filter(|count| *count <= 500);
                let count = count.ok_or_else(|| "a factorial that is not worked out".to_owned())?;
                Some(BigRational::from((1..=count).map(BigInt::from).product::<BigInt>()))
            }
            _ => None,
        };
        Ok(match known {
            Some(number) => Quotient::number(number),
            None => Quotient::atom(Atom::Function(name, Box::new(argument))),
        })
    }
}

impl Polynomial {
    fn term(term: Term, coefficient: BigRational) -> Self {
        let mut polynomial = Self(BTreeMap::new());
        polynomial.put(term, coefficient);
        polynomial
    }

    fn put(&mut self, term: Term, coefficient: BigRational) {
        if coefficient.is_zero() {
            return;
        }
        match self.0.entry(term) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(coefficient);
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                let total = if place.get().is_integer() && coefficient.is_integer() {
                    BigRational::from(place.get().numer() + coefficient.numer())
                } else {
                    place.get() + coefficient
                };
                place.insert(total);
                if place.get().is_zero() {
                    place.remove();
                }
            }
        }
    }
}

impl Quotient {
    pub(super) fn number(number: BigRational) -> Self {
        Self { top: Polynomial::term(Term::new(), number), bottom: Polynomial::term(Term::new(), BigRational::one()) }
    }

    fn atom(atom: Atom) -> Self {
        let term = Term::from([(atom, Exponent::one())]);
        Self { top: Polynomial::term(term, BigRational::one()), ..Self::number(BigRational::one()) }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.top.0.is_empty()
    }

    /// The number that it is, if it is one.
    pub(super) fn constant(&self) -> Option<BigRational> {
        if self.is_zero() {
            return Some(BigRational::zero());
        }
        let (term, coefficient) = self.top.0.first_key_value()?;
        (self.top.0.len() == 1 && term.is_empty() && self.bottom == Polynomial::term(Term::new(), BigRational::one()))
            .then(|| coefficient.clone())
    }

    /// The one atom, with its exponent, that it consists of.
    fn single_atom(&self) -> Option<(&Atom, &Exponent)> {
        let (term, coefficient) = self.top.0.first_key_value()?;
        let alone = self.top.0.len() == 1 && term.len() == 1 && coefficient.is_one();
        (alone && self.bottom == Polynomial::term(Term::new(), BigRational::one())).then(|| term.first_key_value())?
    }

    /// The ratio of the first coefficients of two tops.
    pub(super) fn leading_over(&self, other: &Self) -> Option<BigRational> {
        let (_, one) = self.top.0.first_key_value()?;
        let (_, two) = other.top.0.first_key_value()?;
        Some(one / two)
    }

    /// Whether the normal form of a difference with this in it is decisive: only variables, roots of primes and i, with
    /// at most one of pi and e.
    pub(super) fn decisive_kinds(&self) -> (bool, bool, bool) {
        let (mut plain, mut pi, mut euler) = (true, false, false);
        for atom in self.top.0.keys().chain(self.bottom.0.keys()).flat_map(BTreeMap::keys) {
            match atom {
                Atom::Pi => pi = true,
                Atom::Euler => euler = true,
                Atom::Power(..) | Atom::Function(..) => plain = false,
                Atom::Imaginary | Atom::Prime(_) | Atom::Variable(_) => {}
            }
        }
        (plain, pi, euler)
    }
}

fn sum(mut left: Polynomial, right: &Polynomial) -> Outcome<Polynomial> {
    for (term, coefficient) in &right.0 {
        left.put(term.clone(), coefficient.clone());
    }
    for coefficient in left.0.values() {
        bounded(coefficient)?;
    }
    if left.0.len() > TERMS { Err(format!("more than {TERMS} terms")) } else { Ok(left) }
}

/// The product of two terms: exponents are added, whole powers of primes and of i go into the coefficient.
fn join(left: &Term, right: &Term, mut coefficient: BigRational) -> Outcome<(Term, BigRational)> {
    let mut term = left.clone();
    for (atom, exponent) in right {
        let total = match term.get(atom) {
            Some(present) => present + exponent,
            None => *exponent,
        };
        if total.numer().abs() > EXPONENT || *total.denom() > EXPONENT {
            return Err("an exponent that is too large".to_owned());
        }
        term.insert(atom.clone(), total);
    }
    for (atom, exponent) in &mut term {
        match atom {
            Atom::Prime(prime) if *exponent < Exponent::zero() || *exponent >= Exponent::one() => {
                let whole = exponent.floor();
                let power = number_power(&integer_u64(*prime), whole.to_integer().unsigned_abs())?;
                coefficient *= if whole < Exponent::zero() { power.recip() } else { power };
                *exponent -= whole;
            }
            Atom::Imaginary => {
                let turns = exponent.to_integer().rem_euclid(4);
                if turns >= 2 {
                    coefficient = -coefficient;
                }
                *exponent = Exponent::from(turns % 2);
            }
            _ => {}
        }
    }
    term.retain(|_, exponent| !exponent.is_zero());
    Ok((term, coefficient))
}

fn times(left: &Exponent, right: &Exponent) -> Outcome<Exponent> {
    let product = (left.numer().checked_mul(*right.numer())).zip(left.denom().checked_mul(*right.denom()));
    let (numerator, denominator) = product.ok_or_else(|| "an exponent that is too large".to_owned())?;
    let product = Exponent::new(numerator, denominator);
    if product.numer().abs() > EXPONENT || *product.denom() > EXPONENT {
        return Err("an exponent that is too large".to_owned());
    }
    Ok(product)
}

/// A broken power of a prime: a whole power as a number, the rest as a root.
fn prime_power(prime: u64, exponent: Exponent) -> Outcome<Quotient> {
    let (term, coefficient) = join(&Term::new(), &Term::from([(Atom::Prime(prime), exponent)]), BigRational::one())?;
    Ok(Quotient { top: Polynomial::term(term, coefficient), ..Quotient::number(BigRational::one()) })
}

/// A product; of whole numbers without a look for common factors.
fn product_of(left: &BigRational, right: &BigRational) -> BigRational {
    if left.is_integer() && right.is_integer() { BigRational::from(left.numer() * right.numer()) } else { left * right }
}

fn integer_u64(value: u64) -> BigRational {
    BigRational::from(BigInt::from(value))
}

fn number_power(number: &BigRational, times: u64) -> Outcome<BigRational> {
    let bits = number.numer().bits().max(number.denom().bits());
    if bits > 1 && bits.saturating_mul(times) > BITS {
        return Err("a number that is too large".to_owned());
    }
    let times = if bits > 1 { times } else { times % 2 + 2 };
    let times = u32::try_from(times).map_err(|_| "a number that is too large".to_owned())?;
    Ok(BigRational::new_raw(number.numer().pow(times), number.denom().pow(times)))
}

fn bounded(number: &BigRational) -> Outcome<()> {
    if number.numer().bits().max(number.denom().bits()) > BITS {
        return Err("a number that is too large".to_owned());
    }
    Ok(())
}

fn checked(number: BigRational) -> Outcome<BigRational> {
    bounded(&number).map(|()| number)
}

/// The primes of a number with their counts; a large factor may stand as a whole power by `degree`. `None` when it
/// cannot be taken apart in short time.
fn factor(mut number: BigInt, degree: i64) -> Option<Vec<(BigInt, i64)>> {
    const TRIALS: u64 = 5_000;
    let mut factors = Vec::new();
    for prime in (2..=TRIALS).filter(|candidate| *candidate < 4 || candidate % 2 == 1 && candidate % 3 != 0) {
        let prime = BigInt::from(prime);
        if &prime * &prime > number {
            break;
        }
        let mut count = 0;
        while (&number % &prime).is_zero() {
            number /= &prime;
            count += 1;
        }
        if count > 0 {
            factors.push((prime, count));
        }
    }
    if number.is_one() {
        return Some(factors);
    }
    // Without a factor below the bound, anything below its square is prime.
    if number < BigInt::from(TRIALS * TRIALS) {
        factors.push((number, 1));
        return Some(factors);
    }
    if number.bits() > 2048 {
        return None;
    }
    let root = number.nth_root(u32::try_from(degree).ok()?);
    if root.pow(u32::try_from(degree).ok()?) == number {
        factors.push((root, degree));
        return Some(factors);
    }
    None
}
