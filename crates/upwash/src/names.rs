//! Suggests a known name for one that is misspelled.

/// The known name that is most similar to `given`, if one is similar enough to be meant. Case does not matter, and hyphens
/// matter less than letters.
///
/// ```
/// use upwash::names::nearest;
/// assert_eq!(nearest("d-psgd", ["ad-psgd", "dpsgd"]), Some("dpsgd"));
/// assert_eq!(nearest("tabel2", ["table1", "table2", "figure3"]), Some("table2"));
/// assert_eq!(nearest("lr", ["seed", "model"]), None);
/// ```
pub fn nearest<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let given = given.to_lowercase();
    let letters = |name: &str| name.replace(['-', '_'], "");
    let known = names.into_iter().map(|name| {
        let lower = name.to_lowercase();
        let distance = strsim::damerau_levenshtein(&lower, &given);
        (strsim::damerau_levenshtein(&letters(&lower), &letters(&given)), distance, name)
    });
    let (_, distance, name) = known.min()?;
    // A short word resembles everything.
    (distance <= 3.min(given.chars().count() / 3)).then_some(name)
}

/// "; did you mean ...?" if a known name is [similar enough](nearest), or nothing.
///
/// ```
/// use upwash::names::hint;
/// assert_eq!(hint("Resnet-20", ["cnn", "resnet20"]), "; did you mean `resnet20`?");
/// assert_eq!(hint("vgg", ["cnn", "resnet20"]), "");
/// ```
pub fn hint<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    // A name that is known was refused for something else.
    let near = nearest(given, names).filter(|name| *name != given);
    near.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
