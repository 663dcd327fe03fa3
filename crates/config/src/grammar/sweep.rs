//! Sweeps: the values an override takes one after the other.

use super::{Content, Element};
use crate::origin::Span;

/// What a sweep runs over.
#[derive(Clone, Debug)]
pub(crate) enum Sweep {
    Choice {
        items: Vec<Element>,
        /// Written as `a,b` and not as `choice(a,b)`.
        is_simple: bool,
        shuffled: bool,
    },
    Range {
        start: Number,
        stop: Number,
        step: Number,
        shuffled: bool,
    },
    /// A continuous interval: no sweeper here can enumerate it.
    Interval,
    /// The options of a group whose names match.
    Glob {
        include: Vec<String>,
        exclude: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    pub(crate) fn content(self) -> Content {
        match self {
            Number::Int(value) => Content::Int(value),
            Number::Float(value) => Content::Float(value),
        }
    }
}

/// Most values one override may run over.
const MOST_VALUES: usize = 100_000;

impl Sweep {
    pub(crate) fn simple(items: Vec<Element>) -> Self {
        Sweep::Choice {
            items,
            is_simple: true,
            shuffled: false,
        }
    }

    /// The values, in order. `options` are those of the group that is swept, for `glob`.
    pub(crate) fn values(
        &self,
        span: Span,
        options: impl FnOnce() -> Vec<String>,
    ) -> Result<Vec<Element>, String> {
        let (mut values, shuffled) = match self {
            Sweep::Choice {
                items, shuffled, ..
            } => (items.clone(), *shuffled),
            Sweep::Range {
                start,
                stop,
                step,
                shuffled,
            } => (range(*start, *stop, *step, span)?, *shuffled),
            Sweep::Interval => {
                return Err("an interval() is continuous and cannot be enumerated".to_string());
            }
            Sweep::Glob { include, exclude } => {
                let matches = |name: &str, globs: &[String]| globs.iter().any(|g| glob(g, name));
                let values = options()
                    .into_iter()
                    .filter(|name| matches(name, include) && !matches(name, exclude))
                    .map(|name| Element {
                        content: Content::Text(name),
                        span,
                    })
                    .collect();
                (values, false)
            }
        };
        if shuffled {
            shuffle(&mut values);
        }
        Ok(values)
    }
}

fn range(start: Number, stop: Number, step: Number, span: Span) -> Result<Vec<Element>, String> {
    let element = |number: Number| Element {
        content: number.content(),
        span,
    };
    let too_many = || format!("a range() of more than {MOST_VALUES} values");
    let mut values = Vec::new();
    if let (Number::Int(mut at), Number::Int(stop), Number::Int(step)) = (start, stop, step) {
        if step == 0 {
            return Err("the step of a range() cannot be 0".to_string());
        }
        while (step > 0 && at < stop) || (step < 0 && at > stop) {
            values.push(element(Number::Int(at)));
            if values.len() > MOST_VALUES {
                return Err(too_many());
            }
            let Some(next) = at.checked_add(step) else {
                break;
            };
            at = next;
        }
        return Ok(values);
    }
    let (start, stop, step) = (start.as_f64(), stop.as_f64(), step.as_f64());
    if step == 0.0 || ![start, stop, step].iter().all(|x| x.is_finite()) {
        return Err("a range() takes finite numbers and a step that is not 0".to_string());
    }
    for index in 0.. {
        let at = step_from(start, step, index);
        if (step > 0.0 && at >= stop) || (step < 0.0 && at <= stop) {
            break;
        }
        values.push(element(Number::Float(at)));
        if values.len() > MOST_VALUES {
            return Err(too_many());
        }
    }
    Ok(values)
}

/// `start + index * step` in decimal, so that `range(0.1, 0.4, 0.1)` is 0.1, 0.2, 0.3.
fn step_from(start: f64, step: f64, index: usize) -> f64 {
    let exact = || {
        let (a, a_scale) = decimal(start)?;
        let (b, b_scale) = decimal(step)?;
        let scale = a_scale.max(b_scale);
        let grow = |value: i128, by: u32| value.checked_mul(10i128.checked_pow(by)?);
        let a = grow(a, scale - a_scale)?;
        let b = grow(b, scale - b_scale)?.checked_mul(index as i128)?;
        format!("{}e-{scale}", a.checked_add(b)?).parse().ok()
    };
    exact().unwrap_or(start + step * index as f64)
}

/// The shortest decimal of a float, as an integer and how many digits follow the point.
fn decimal(value: f64) -> Option<(i128, u32)> {
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let fraction = digits.split_once('.').map_or(0, |(_, f)| f.len() as i32);
    let mantissa: i128 = digits.replace('.', "").parse().ok()?;
    let scale = fraction - exponent;
    if scale < 0 {
        let shift = 10i128.checked_pow(scale.unsigned_abs())?;
        return Some((mantissa.checked_mul(shift)?, 0));
    }
    Some((mantissa, scale as u32))
}

/// Fisher-Yates with the randomness of the standard library's hasher keys.
fn shuffle<T>(items: &mut [T]) {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    for last in (1..items.len()).rev() {
        let other = random.hash_one(last) as usize % (last + 1);
        items.swap(last, other);
    }
}

/// Shell-style matching: `*`, `?`, `[abc]`, `[!abc]`.
fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // Where to go back to when the part after the last `*` fails: it takes one more character.
    let (mut p, mut n, mut retry) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
                continue;
            }
            Some(_) => {
                if let Some(next) = one(&pattern, p, name[n]) {
                    p = next;
                    n += 1;
                    continue;
                }
            }
            None => {}
        }
        match retry {
            Some((star, taken)) => {
                retry = Some((star, taken + 1));
                p = star + 1;
                n = taken + 1;
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Matches one character; gives where the pattern goes on.
fn one(pattern: &[char], at: usize, c: char) -> Option<usize> {
    match pattern[at] {
        '?' => Some(at + 1),
        '[' => {
            let negated = pattern.get(at + 1) == Some(&'!');
            let first = at + 1 + usize::from(negated);
            // A `]` in the first place belongs to the set.
            let close = (first + 1..pattern.len()).find(|i| pattern[*i] == ']');
            let Some(close) = close else {
                return (c == '[').then_some(at + 1);
            };
            let set = &pattern[first..close];
            let mut found = false;
            let mut i = 0;
            while i < set.len() {
                if i + 2 < set.len() && set[i + 1] == '-' {
                    found |= set[i] <= c && c <= set[i + 2];
                    i += 3;
                } else {
                    found |= set[i] == c;
                    i += 1;
                }
            }
            (found != negated).then_some(close + 1)
        }
        exact => (exact == c).then_some(at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        assert!(glob("*", "anything"));
        assert!(glob("a*", "adamw"));
        assert!(glob("*factor", "adafactor"));
        assert!(!glob("a*", "lion"));
        assert!(glob("l?on", "lion"));
        assert!(glob("[a-m]ion", "lion"));
        assert!(!glob("[!l]ion", "lion"));
        assert!(glob("*a*b*c", "xaxbxc"));
    }

    #[test]
    fn a_float_range_is_exact_in_decimal() {
        let values: Vec<f64> = (0..3).map(|i| step_from(0.1, 0.1, i)).collect();
        assert_eq!(values, [0.1, 0.2, 0.3]);
    }
}
