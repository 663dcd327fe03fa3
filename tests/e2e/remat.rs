//! `model/remat=...` changes what a run costs and nothing of what it gives.

use crate::harness::Place;

#[test]
fn a_run_with_remat_gives_the_same_losses_as_one_without() {
    let place = Place::new();
    let run = |remat: &str, dir: &str| {
        let (remat, dir) = (
            format!("model/remat={remat}"),
            format!("hydra.run.dir={dir}"),
        );
        let more = ["trainer.max_steps=6", "model.hidden_dropout=0.1"];
        place
            .run_nano(&[&more[..], &[&remat, &dir]].concat())
            .with_code(0);
        let rows = std::fs::read_to_string(place.path().join(&dir[14..]).join("metrics.jsonl"));
        let rows = rows.expect("a record");
        let values: Vec<serde_json::Value> = rows
            .lines()
            .map(|row| serde_json::from_str(row).expect("a row"))
            .collect();
        let numbers = values
            .iter()
            .map(|row| format!("{} {} {}", row["loss"], row["grad_norm"], row["val_loss"]));
        numbers.collect::<Vec<_>>()
    };
    let kept = run("none", "none");
    assert!(kept.len() >= 6);
    for remat in ["full", "alternate", "mlp"] {
        assert_eq!(run(remat, remat), kept, "{remat}");
    }
}

#[test]
fn a_layer_that_the_model_does_not_have_is_refused_where_it_is_named() {
    let place = Place::new();
    place
        .run_nano(&["+model.remat.activation_checkpoint_layers=[LlamaDecoderLayers]"])
        .with_code(2)
        .complains("`LlamaDecoderLayers` is no module path or class of this model")
        .complains("activation_checkpoint_layers=[LlamaDecoderLayers]");
    assert!(place.run_folders().is_empty());
}
