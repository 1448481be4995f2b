//! Model files carry everything that is needed to use them: network, scaling and classes.
#![allow(clippy::unwrap_used)]

use safetensors::SafeTensors;
use upwash::config::Config;
use upwash::{TrainedModel, Trainer};

fn train(folder: &std::path::Path, model: &str) -> upwash::Summary {
    let text = format!("model = \"{model}\"\n[graph]\ntopology = \"ring:4\"\n[training]\nepochs = 3\n");
    Trainer::new(Config::parse(&text, &[]).unwrap()).output(folder).run().unwrap()
}

#[test]
fn evaluation_of_a_file_gives_the_accuracy_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let digits = upwash::data::digits();
    for name in ["mlp:16", "cnn"] {
        let run = folder.path().join(name);
        let summary = train(&run, name);
        for path in [run.clone(), run.join("model.safetensors")] {
            let model = TrainedModel::read(&path).unwrap();
            assert_eq!((model.info.model.as_str(), model.info.data.as_str()), (name, "digits"));
            let found = model.evaluate(&digits.test).unwrap();
            assert_eq!(found.score.accuracy(), summary.averaged_model_accuracy, "{name}");
            // Each row has the images of a class, the diagonal those that are right.
            for (class, row) in found.confusion.iter().enumerate() {
                let images = digits.test.labels.iter().filter(|&&label| usize::from(label) == class).count();
                assert_eq!(row.iter().sum::<u64>(), images as u64);
            }
            let right: u64 = (0..10).map(|class| found.confusion[class][class]).sum();
            assert_eq!(right as usize, found.score.correct);
        }
    }
}

/// A softmax regression, computed from the tensors and the metadata of the file alone.
#[test]
fn file_of_a_softmax_regression_can_be_used_without_this_program() {
    let folder = tempfile::tempdir().unwrap();
    let summary = train(folder.path(), "softmax");
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let (file, (_, header)) = (SafeTensors::deserialize(&bytes).unwrap(), SafeTensors::read_metadata(&bytes).unwrap());
    let about: serde_json::Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["upwash"]).unwrap();
    assert_eq!(about["classes"], 10);
    assert_eq!(about["layers"], serde_json::json!([{ "type": "flatten" }, { "type": "linear", "outputs": 10 }]));
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let scaling = &about["scaling"];
    let (full, mean, deviation) =
        (number(&scaling["full"]), number(&scaling["mean"][0]), number(&scaling["deviation"][0]));
    let tensor = |name: &str| -> Vec<f64> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap()))).collect()
    };
    let (weights, bias) = (tensor("1.weight"), tensor("1.bias"));
    let test = upwash::data::digits().test;
    let mut confusion = vec![vec![0u64; 10]; 10];
    let mut loss = 0.0;
    for index in 0..test.len() {
        let x: Vec<f64> = test.image(index).iter().map(|&pixel| (f64::from(pixel) / full - mean) / deviation).collect();
        let logit =
            |class: usize| bias[class] + weights[64 * class..][..64].iter().zip(&x).map(|(w, x)| w * x).sum::<f64>();
        let logits: Vec<f64> = (0..10).map(logit).collect();
        let best = (0..10).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let label = usize::from(test.labels[index]);
        confusion[label][best] += 1;
        loss += logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[label];
    }
    let found = TrainedModel::read(folder.path()).unwrap().evaluate(&test).unwrap();
    assert_eq!(found.confusion, confusion);
    assert!((found.score.loss - loss / test.len() as f64).abs() < 1e-5, "{}", found.score.loss);
    assert_eq!(found.score.accuracy(), summary.averaged_model_accuracy);
}

#[test]
fn files_and_images_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    train(&here.join("run"), "softmax");
    let model = TrainedModel::read(&here.join("run")).unwrap();
    let mut images = upwash::data::digits().test;
    images.labels[3] = 10;
    let error = model.evaluate(&images).unwrap_err().to_string();
    assert!(error.contains("the model has 10 classes, but an image has the label 10"), "{error}");
    images.shape = [1, 4, 16];
    let error = model.evaluate(&images).unwrap_err().to_string();
    assert!(error.contains("takes images of shape 1x8x8 (channels, height, width), not 1x4x16"), "{error}");
    let refused = |bytes: &[u8], words: &str| {
        let file = here.join("file.safetensors");
        std::fs::write(&file, bytes).unwrap();
        let error = TrainedModel::read(&file).err().unwrap().to_string();
        assert!(error.contains(words) && error.contains("file.safetensors"), "{error}");
    };
    let bytes = std::fs::read(here.join("run/model.safetensors")).unwrap();
    refused(&bytes[..100], "is not a safetensors file");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let with = |about: Option<&str>| {
        let about = about.map(|about| [("upwash".to_owned(), about.to_owned())].into());
        safetensors::serialize(tensors.tensors(), about).unwrap()
    };
    refused(&with(None), "does not say which network it belongs to");
    refused(&with(Some(r#"{"model":"softmax","data":"digits"}"#)), "its metadata lacks the network");
}
