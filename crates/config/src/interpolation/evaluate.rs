//! Evaluation of one interpolation: its text, its arguments, and what they refer to.

use super::resolve::{Failure, Found, MAX_EVALUATIONS, MAX_NESTING, PER_REFERENCE, Path, Resolver};
use super::select::SelectMissing;
use super::{Expression, Part, Reference, Step, Template, parse, resolvers};
use crate::interpolation::resolve::Missing;
use crate::origin::Origin;
use crate::python;
use crate::value::{Map, Node, Value};

impl Resolver<'_> {
    /// Evaluates the interpolation held by `node`, which stands at `path`.
    pub(super) fn evaluate(&self, node: &Node, path: &Path) -> Result<Found, Failure> {
        let text = node.as_str().unwrap_or_default();
        let template = parse::template(text).map_err(|error| Failure::new(error.message))?;
        if self.active.borrow().contains(path) {
            return Err(self.cycle(path));
        }
        self.active.borrow_mut().push(path.clone());
        let found = self.template(&template, path, &node.origin);
        self.active.borrow_mut().pop();
        found
    }

    /// Counts one `${...}` more, and its nesting.
    fn enter_reference(&self) -> Result<(), Failure> {
        self.evaluations.set(self.evaluations.get() + 1);
        if self.evaluations.get() > MAX_EVALUATIONS {
            return Err(Failure::new(format!(
                "more than {MAX_EVALUATIONS} interpolations are evaluated"
            )));
        }
        if self.nesting.get() >= MAX_NESTING {
            return Err(Failure::new(format!(
                "a chain of more than {} interpolations",
                MAX_NESTING / PER_REFERENCE
            )));
        }
        self.nesting.set(self.nesting.get() + PER_REFERENCE);
        Ok(())
    }

    pub(crate) fn template(
        &self,
        template: &Template,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        if let [Part::Reference(reference)] = &template.0[..] {
            return self.reference(reference, path, site);
        }
        let text = self.joined(&template.0, path, site)?;
        Ok(Found::New(Node::new(Value::Str(text), site.clone())))
    }

    fn joined(&self, parts: &[Part], path: &Path, site: &Origin) -> Result<String, Failure> {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Reference(reference) => {
                    let found = self.reference(reference, path, site)?;
                    text.push_str(&python::display(self.peek(&found)?));
                }
            }
            if text.len() > 1 << 20 {
                return Err(Failure::new("a text of more than a megabyte"));
            }
        }
        Ok(text)
    }

    /// The node that was found, not copied.
    pub(crate) fn peek<'f>(&'f self, found: &'f Found) -> Result<&'f Node, Failure> {
        match found {
            Found::New(node) => Ok(node),
            Found::At(path) => self
                .node(path)
                .ok_or_else(|| Failure::new("the key is gone")),
        }
    }

    fn reference(
        &self,
        reference: &Reference,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        self.enter_reference()?;
        let found = self.referenced(reference, path, site);
        self.nesting.set(self.nesting.get() - PER_REFERENCE);
        found
    }

    fn referenced(
        &self,
        reference: &Reference,
        path: &Path,
        site: &Origin,
    ) -> Result<Found, Failure> {
        match reference {
            Reference::Key { dots, steps } => {
                let key = format!("{}{}", ".".repeat(*dots), self.name(steps, path, site)?);
                let found = self.select(&key, path, SelectMissing::Refuse)?;
                let Some(found) = found else {
                    return Err(self.not_found(&key, path));
                };
                if let Found::At(target) = &found
                    && path.len() > target.len()
                    && path.starts_with(target)
                {
                    return Err(Failure::new("it refers to what it is part of"));
                }
                Ok(found)
            }
            Reference::Call { name, arguments } => {
                let name = self.name(name, path, site)?;
                let arguments = arguments
                    .iter()
                    .map(|argument| self.expression(argument, path, site))
                    .collect::<Result<Vec<Node>, _>>()?;
                resolvers::call(self, &name, arguments, path, site)
            }
        }
    }

    fn name(&self, steps: &[Step], path: &Path, site: &Origin) -> Result<String, Failure> {
        let mut names = Vec::new();
        for step in steps {
            names.push(match step {
                Step::Name(name) => name.clone(),
                Step::Reference(inner) => {
                    let found = self.reference(inner, path, site)?;
                    let node = self.peek(&found)?;
                    match node.as_str() {
                        Some(text) => text.to_string(),
                        None => {
                            return Err(Failure::new(format!(
                                "a part of a key must be text, not {}",
                                node.describe()
                            )));
                        }
                    }
                }
            });
        }
        Ok(names.join("."))
    }

    pub(crate) fn expression(
        &self,
        expression: &Expression,
        path: &Path,
        site: &Origin,
    ) -> Result<Node, Failure> {
        let value = match expression {
            Expression::Null => Value::Null,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Int(value) => Value::Int(*value),
            Expression::Float(value) => Value::Float(*value),
            Expression::Text(text) => Value::Str(text.clone()),
            Expression::Joined(parts) => Value::Str(self.joined(parts, path, site)?),
            Expression::Reference(reference) => {
                return match self.reference(reference, path, site)? {
                    Found::New(node) => Ok(node),
                    Found::At(target) => self.resolved_copy(&target),
                };
            }
            Expression::List(items) => Value::List(
                items
                    .iter()
                    .map(|item| self.expression(item, path, site))
                    .collect::<Result<_, _>>()?,
            ),
            Expression::Dict(pairs) => {
                let mut map = Map::new();
                for (key, item) in pairs {
                    map.insert(key.clone(), self.expression(item, path, site)?);
                }
                Value::Map(map)
            }
        };
        Ok(Node::new(value, site.clone()))
    }

    /// A copy of the node at `path` with everything in it resolved.
    pub(crate) fn resolved_copy(&self, path: &Path) -> Result<Node, Failure> {
        let node = self
            .node(path)
            .ok_or_else(|| Failure::new("the key is gone"))?;
        if self.expanding.borrow().contains(path) {
            return Err(self.cycle(path));
        }
        self.expanding.borrow_mut().push(path.clone());
        let copy = self.copy(node, &mut path.clone(), Missing::Keep);
        self.expanding.borrow_mut().pop();
        Ok(copy)
    }
}
