//! The summary of a run: a value for every metric.

use indexmap::IndexMap;

use super::config::SummaryRule;
use super::json;
use super::record::Items;

/// The last value of every metric, or what else was asked for.
pub(super) struct Summary {
    rules: IndexMap<String, Vec<SummaryRule>>,
    values: IndexMap<String, Totals>,
    pub(super) step: u64,
}

struct Totals {
    first: String,
    last: String,
    min: f64,
    max: f64,
    sum: f64,
    count: u64,
}

impl Summary {
    pub(super) fn new<'a>(
        rules: impl IntoIterator<Item = (&'a String, &'a Vec<SummaryRule>)>,
    ) -> Self {
        let rules = rules.into_iter();
        Self {
            rules: rules
                .map(|(key, rules)| (key.clone(), rules.clone()))
                .collect(),
            values: IndexMap::new(),
            step: 0,
        }
    }

    pub(super) fn take(&mut self, key: &str, value: &str) {
        let totals = self.values.entry(key.to_owned());
        let totals = totals.or_insert_with(|| Totals {
            first: value.to_owned(),
            last: String::new(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            sum: 0.0,
            count: 0,
        });
        totals.last = value.to_owned();
        if let Some(number) = json::parse_number(value).filter(|number| !number.is_nan()) {
            totals.min = totals.min.min(number);
            totals.max = totals.max.max(number);
            totals.sum += number;
            totals.count += 1;
        }
    }

    pub(super) fn items(&self) -> Items {
        let summed = |(key, totals): (&String, &Totals)| {
            let value = match self.rules.get(key) {
                Some(rules) if !rules.is_empty() => totals.ruled(rules),
                _ => totals.last.clone(),
            };
            (key.clone(), value)
        };
        self.values.iter().map(summed).collect()
    }
}

impl Totals {
    fn ruled(&self, rules: &[SummaryRule]) -> String {
        let value = |rule: &SummaryRule| match rule {
            SummaryRule::First => Some(self.first.clone()),
            SummaryRule::Last => Some(self.last.clone()),
            _ if self.count == 0 => None,
            SummaryRule::Min => Some(json::number(self.min)),
            SummaryRule::Max => Some(json::number(self.max)),
            SummaryRule::Mean => Some(json::number(self.sum / self.count as f64)),
        };
        let fields: Items = rules
            .iter()
            .filter_map(|rule| Some((rule.name().to_owned(), value(rule)?)))
            .collect();
        json::line(&fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_last_value_or_what_its_rules_say() {
        use SummaryRule::{First, Last, Max, Mean, Min};
        let rules = [("a".to_owned(), vec![Min, Max, Mean, First, Last])];
        let mut summary = Summary::new(rules.iter().map(|(key, rules)| (key, rules)));
        for value in ["2", "NaN", "4", "3"] {
            summary.take("a", value);
            summary.take("b", value);
        }
        let items = summary.items();
        let all = r#"{"min":2.0,"max":4.0,"mean":3.0,"first":2,"last":3}"#;
        assert_eq!(items["a"], all);
        assert_eq!(items["b"], "3");
    }
}
