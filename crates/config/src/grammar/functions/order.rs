//! `sort` and `shuffle`, of lists and of sweeps.

use super::{Call, describe, refuse_sweeps};
use crate::grammar::sweep::{Number, Sweep};
use crate::grammar::{Content, Element};
use crate::origin::Span;

/// The one list or sweep that `sort` and `shuffle` take, or several values as a simple choice.
fn list_or_sweep(call: &mut Call) -> Result<Content, String> {
    for name in ["list", "sweep"] {
        if let Some(value) = call.take_named(name) {
            call.positional.insert(0, value);
        }
    }
    call.no_more_names()?;
    match call.positional.len() {
        0 => Err(format!("{}() takes at least one value", call.name)),
        1 => Ok(call.positional.remove(0).content),
        _ => {
            refuse_sweeps(&call.positional)?;
            Ok(Content::Sweep(Sweep::simple(std::mem::take(
                &mut call.positional,
            ))))
        }
    }
}

pub(super) fn sort(mut call: Call) -> Result<Content, String> {
    let reverse = match call.take_named("reverse").map(|value| value.content) {
        None => false,
        Some(Content::Bool(reverse)) => reverse,
        Some(other) => {
            return Err(format!(
                "`reverse` must be a bool, not {}",
                describe(&other)
            ));
        }
    };
    Ok(match list_or_sweep(&mut call)? {
        Content::List(items) => Content::List(sorted(items, reverse)?),
        Content::Sweep(Sweep::Choice {
            items,
            is_simple,
            shuffled,
        }) => Content::Sweep(Sweep::Choice {
            items: sorted(items, reverse)?,
            is_simple,
            shuffled,
        }),
        Content::Sweep(Sweep::Range {
            start,
            stop,
            step,
            shuffled,
        }) => {
            let goes_wrong_way = if reverse {
                start.as_f64() < stop.as_f64()
            } else {
                start.as_f64() > stop.as_f64()
            };
            let (start, stop, step) = if goes_wrong_way {
                turned(start, stop, step).ok_or("the range() is too large")?
            } else {
                (start, stop, step)
            };
            Content::Sweep(Sweep::Range {
                start,
                stop,
                step,
                shuffled,
            })
        }
        Content::Sweep(_) => return Err("sort() takes a list, a choice or a range".to_string()),
        single => single,
    })
}

/// The range that runs the other way. Bounds move by one step, since `stop` is left out.
fn turned(start: Number, stop: Number, step: Number) -> Option<(Number, Number, Number)> {
    let down = start.as_f64() > stop.as_f64();
    Some(match (start, stop, step) {
        (Number::Int(start), Number::Int(stop), Number::Int(step)) => {
            let shift = if down {
                step.checked_abs()?
            } else {
                -step.checked_abs()?
            };
            (
                Number::Int(stop.checked_add(shift)?),
                Number::Int(start.checked_add(shift)?),
                Number::Int(step.checked_neg()?),
            )
        }
        _ => {
            let size = step.as_f64().abs();
            let shift = if down { size } else { -size };
            (
                Number::Float(stop.as_f64() + shift),
                Number::Float(start.as_f64() + shift),
                Number::Float(-step.as_f64()),
            )
        }
    })
}

fn sorted(mut items: Vec<Element>, reverse: bool) -> Result<Vec<Element>, String> {
    if items.len() < 2 {
        return Ok(items);
    }
    enum SortKey {
        Number(f64),
        Text(String),
    }
    let key = |item: &Element| match &item.content {
        Content::Int(value) => Ok(SortKey::Number(*value as f64)),
        Content::Float(value) => Ok(SortKey::Number(*value)),
        Content::Bool(value) => Ok(SortKey::Number(f64::from(u8::from(*value)))),
        Content::Text(text) | Content::Quoted(text) => Ok(SortKey::Text(text.clone())),
        other => Err(format!("sort() cannot order {}", describe(other))),
    };
    let keys: Vec<SortKey> = items.iter().map(key).collect::<Result<_, _>>()?;
    let numbers = keys.iter().filter(|k| matches!(k, SortKey::Number(_)));
    if ![0, keys.len()].contains(&numbers.count()) {
        return Err("sort() cannot order numbers and texts together".to_string());
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|a, b| {
        let ordering = match (&keys[*a], &keys[*b]) {
            (SortKey::Number(a), SortKey::Number(b)) => a.total_cmp(b),
            (SortKey::Text(a), SortKey::Text(b)) => a.cmp(b),
            _ => std::cmp::Ordering::Equal,
        };
        // Reversed by comparison and not afterwards: equal values keep their order, as in Python.
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
    let mut slots: Vec<Option<Element>> = items.drain(..).map(Some).collect();
    Ok(order
        .into_iter()
        .filter_map(|at| slots[at].take())
        .collect())
}

pub(super) fn shuffle(mut call: Call) -> Result<Content, String> {
    Ok(match list_or_sweep(&mut call)? {
        Content::Sweep(Sweep::Choice {
            items, is_simple, ..
        }) => Content::Sweep(Sweep::Choice {
            items,
            is_simple,
            shuffled: true,
        }),
        Content::Sweep(Sweep::Range {
            start, stop, step, ..
        }) => Content::Sweep(Sweep::Range {
            start,
            stop,
            step,
            shuffled: true,
        }),
        Content::Sweep(_) => return Err("shuffle() takes a list, a choice or a range".to_string()),
        Content::List(items) => {
            let shuffled = Sweep::Choice {
                items,
                is_simple: true,
                shuffled: true,
            };
            Content::List(shuffled.values(Span::default(), Vec::new)?)
        }
        single => Content::List(vec![Element {
            content: single,
            span: Span::default(),
        }]),
    })
}
