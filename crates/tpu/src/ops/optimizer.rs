//! One optimizer step in place.

use candle_core::op::CmpOp;
use candle_core::{DType, Layout};
use tt_cpu::{Formula, UpdateRule, View};

use crate::error::Result;
use crate::launch::{code, kernels};
use crate::ops::operand::{dense, ensure, output};
use crate::ops::reduce::{self, Op};
use crate::ops::{binary, copy, fill, unary};
use crate::storage::{TpuStorage, elements};
use crate::traffic::{F32, Operand, Traffic};

const MAX_STATES: usize = UpdateRule::MAX_STATES;
const COEFFICIENTS: usize = 7;

kernels! {
    OptimizerStep = "optimizer_step" {
        param: u64,
        grad: u64,
        grad_scale: u64,
        state: [u64; MAX_STATES],
        n: u64,
        state_dtype: [u32; MAX_STATES],
        num_states: u32,
        rule: u32,
        l2: f32,
        keep: f32,
        c: [f32; COEFFICIENTS],
    }
}

impl Traffic for OptimizerStep {
    fn operands(&self) -> Vec<Operand> {
        let n = [self.n as i64];
        let mut operands = vec![
            Operand::update("param", n, F32),
            Operand::read("grad", n, F32),
            Operand::read("grad_scale", [1], F32),
        ];
        let states = self.state_dtype.iter().take(self.num_states as usize);
        operands.extend(states.map(|dtype| Operand::update("state", n, *dtype)));
        operands
    }
}

/// In the order of the kernel's.
#[derive(Clone, Copy)]
enum Rule {
    Descend,
    Adam,
    AmsGrad,
    Momentum,
    Lion,
    Adagrad,
    RmsProp,
}

/// What the kernel calls a formula, and its `c`.
fn rule_and_c(formula: Formula) -> (Rule, Vec<f32>) {
    match formula {
        Formula::Descend { rate } => (Rule::Descend, vec![rate]),
        Formula::Adam(a) => {
            let rule = if a.amsgrad { Rule::AmsGrad } else { Rule::Adam };
            let c = vec![
                a.beta1,
                a.one_minus_beta1,
                a.beta2,
                a.one_minus_beta2,
                a.step_size,
                a.inv_sqrt_correction2,
                a.eps,
            ];
            (rule, c)
        }
        Formula::Momentum(m) => {
            let c = vec![
                m.momentum,
                m.one_minus_dampening,
                m.lr,
                m.of_grad,
                m.of_buffer,
            ];
            (Rule::Momentum, c)
        }
        Formula::Lion(l) => {
            let c = vec![l.beta1, l.one_minus_beta1, l.lr, l.beta2, l.one_minus_beta2];
            (Rule::Lion, c)
        }
        Formula::Adagrad { lr, eps } => (Rule::Adagrad, vec![lr, eps]),
        Formula::RmsProp(r) => (Rule::RmsProp, vec![r.alpha, r.one_minus_alpha, r.lr, r.eps]),
    }
}

pub(crate) fn step(
    rule: &UpdateRule,
    param: &mut TpuStorage,
    grad: View<TpuStorage>,
    grad_scale: View<TpuStorage>,
    states: &mut [&mut TpuStorage],
    sums: Option<(&mut TpuStorage, usize)>,
) -> Result<()> {
    const OP: &str = "optimizer_step";
    let n = elements(grad.1);
    ensure!(
        states.len() == rule.num_states(),
        "{OP}: {} states for {rule:?}",
        states.len()
    );
    let by = rule.coefficients();
    let (kind, c) = rule_and_c(by.formula);
    let mut args = OptimizerStep {
        param: output("optimizer_step: param", param, DType::F32, n)?,
        grad: dense("optimizer_step: grad", grad, DType::F32, n)?,
        grad_scale: dense("optimizer_step: grad_scale", grad_scale, DType::F32, 1)?,
        n: n as u64,
        num_states: states.len() as u32,
        rule: kind as u32,
        l2: by.l2,
        keep: by.keep,
        ..OptimizerStep::default()
    };
    for (i, state) in states.iter().enumerate() {
        let dtype = state.kind();
        ensure!(
            matches!(dtype, DType::F32 | DType::BF16),
            "{OP}: a state of {dtype:?}"
        );
        args.state[i] = output("optimizer_step: state", state, dtype, n)?;
        args.state_dtype[i] = code(dtype)?;
    }
    args.c[..c.len()].copy_from_slice(&c);
    if n == 0 {
        return match sums {
            Some((sums, slot)) => zero(sums, 3 * slot),
            None => Ok(()),
        };
    }
    let before = match sums {
        Some(_) => Some(copied(param, n)?),
        None => None,
    };
    param.on().launch(args)?;
    match (sums, before) {
        (Some((sums, slot)), Some(before)) => add_up(before, param, grad, n, sums, slot),
        _ => Ok(()),
    }
}

fn copied(x: &TpuStorage, n: usize) -> Result<TpuStorage> {
    let mut copy = x.on().alloc(x.kind(), n)?;
    copy::into_order((x, &Layout::contiguous(n)), &mut copy, 0)?;
    Ok(copy)
}

fn zero(sums: &mut TpuStorage, first: usize) -> Result<()> {
    let mut zeros = sums.on().alloc(DType::F32, 3)?;
    fill::fill(&mut zeros, 3, 0.0)?;
    copy::into_order((&zeros, &Layout::contiguous(3)), sums, first)
}

/// The squares of the step and of the weights, and the weights that moved against their gradient, summed in an order that depends
/// on the number of weights alone. For steps whose metrics are due: each line is a pass over memory.
fn add_up(
    before: TpuStorage,
    param: &TpuStorage,
    grad: View<TpuStorage>,
    n: usize,
    sums: &mut TpuStorage,
    slot: usize,
) -> Result<()> {
    let layout = Layout::contiguous(n);
    let mut moved = before;
    binary::update(
        binary::Function::Linear,
        [-1.0, 1.0],
        &mut moved,
        n,
        (param, &layout),
    )?;
    reduce::sum_squares((&moved, &layout), sums, 3 * slot)?;
    reduce::sum_squares((param, &layout), sums, 3 * slot + 1)?;
    // Its sign alone: the product of step and gradient could round to 0.
    unary::update(unary::Function::Sign, [0.0; 2], &mut moved, n)?;
    binary::update(binary::Function::Mul, [0.0; 2], &mut moved, n, grad)?;
    let mut zero = param.on().alloc(DType::F32, 1)?;
    fill::fill(&mut zero, 1, 0.0)?;
    let one = Layout::contiguous(1);
    let against = binary::map(
        CmpOp::Lt.into(),
        (&moved, &layout),
        (&zero, &one),
        DType::F32,
    )?;
    let count = reduce::reduce(Op::Sum, (&against, &layout), &[0])?;
    copy::into_order((&count, &one), sums, 3 * slot + 2)
}

/// `y = alpha y + beta x` for the first `len` elements, `x` absent counts as 0; to the nearest bf16 if asked for.
pub(crate) fn combine(
    y: &mut TpuStorage,
    len: usize,
    alpha: f32,
    x: Option<(f32, View<TpuStorage>)>,
    to_bf16: bool,
) -> Result<()> {
    match x {
        Some((beta, x)) => binary::update(binary::Function::Linear, [alpha, beta], y, len, x)?,
        None if alpha != 1.0 => {
            unary::update(unary::Function::Affine, [alpha.into(), 0.0], y, len)?;
        }
        None => {}
    }
    if to_bf16 {
        unary::update(unary::Function::RoundToBf16, [0.0; 2], y, len)?;
    }
    Ok(())
}
