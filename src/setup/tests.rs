use super::*;
use crate::args::{Args, Options};
use crate::configs;

fn read(overrides: &[&str]) -> Result<Setup, String> {
    let composer = configs::composer(&Args::default(), &[], "default").expect("folders");
    let mut composition = composer.compose(overrides).map_err(|e| e.to_string())?;
    crate::defaults::apply(&mut composition);
    let invocation = Invocation {
        plugins: Plugins::built_in(),
        composition,
        composer,
        overrides: Vec::new(),
        arguments: Vec::new(),
        options: Options::default(),
    };
    Setup::read(&invocation).map_err(|e| e.to_string())
}

#[test]
fn every_option_of_every_group_type_checks() {
    let composer = configs::composer(&Args::default(), &[], "default").expect("folders");
    let groups = composer.groups();
    assert!(groups.len() >= 8, "{groups:?}");
    for (group, options) in &groups {
        // What others begin with names nothing to run.
        for option in options.iter().filter(|option| *option != "base") {
            let choice = format!("{group}={option}");
            // What else a run needs.
            let looks_both_ways = ["bert", "masked_lm"].iter().any(|it| choice.contains(it));
            let others = match choice.as_str() {
                _ if looks_both_ways => ["model=bert", "trainer=masked_lm"],
                "trainer/recipe=megatron_gpt" => ["model=gpt2", "trainer=lm"],
                _ => ["model=qwen2", "trainer=lm"],
            };
            let mut overrides: Vec<_> = (others.into_iter())
                .filter(|other| !other.starts_with(&format!("{group}=")))
                .collect();
            overrides.push(&choice);
            match choice.as_str() {
                "data=mixture" => {
                    overrides.push("data.dataset.kwargs.sources=[{url: stories, max_rows: 10}]");
                }
                "data=hf" => overrides.push("data.dataset.kwargs.path=user/name"),
                "data=stories" | "data=stories_pairs" => {}
                _ if group == "data" => overrides.push("data.path=given"),
                _ => {}
            }
            if let Err(problems) = read(&overrides) {
                panic!("{choice}: {problems}");
            }
        }
    }
}

/// As the published checkpoints have it, a tied weight counted once.
#[test]
fn published_models_have_their_published_number_of_parameters() {
    for (name, published) in [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("qwen2-0.5b", 494_032_768),
        ("qwen2-1.5b", 1_543_714_304),
        ("qwen2-7b", 7_615_616_512),
        ("qwen3-0.6b", 596_049_920),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama3-8b", 8_030_261_248),
        ("llama3.2-1b", 1_235_814_400),
        ("tinyllama-1.1b", 1_100_048_384),
        ("smollm2-135m", 134_515_008),
        ("bert-base", 109_514_298), // without the pooler
        ("bert-large", 335_174_458),
    ] {
        let setup = read(&[&format!("model={name}"), "trainer=lm"]).expect(name);
        let specs = setup.model.params().into_iter();
        let elements = specs.map(|spec| spec.shape.iter().product::<usize>());
        assert_eq!(elements.sum::<usize>(), published, "{name}");
    }
}

#[test]
fn all_problems_are_found_at_once() {
    let problems = read(&[
        "model=qwen2",
        "trainer=lm",
        "+seeds=1",
        "seed=many",
        "model.num_attention_heads=3",
        "trainer.micro_batch_size=0",
        "trainer.optimizer.kwargs.weight_decay=-1",
        "+trainer.kwargs.z_los=1",
        "+data.collator.kwargs.pack=true",
        "data.dataset.kwargs.seed=a",
    ])
    .err()
    .expect("problems");
    for key in [
        "seeds",
        "`seed`",
        "num_attention_heads",
        "micro_batch_size",
        "weight_decay",
        "z_los",
        "`pack`",
        "data.dataset.kwargs.seed",
    ] {
        assert!(problems.contains(key), "{key} in:\n{problems}");
    }
    assert_eq!(problems.matches("error: ").count(), 8, "{problems}");
}
