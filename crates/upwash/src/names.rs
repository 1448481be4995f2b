//! Suggests a known name for one that is misspelled.

/// The known name that is most similar to `given`, if one is similar enough to be meant.
///
/// ```
/// use upwash::names::nearest;
/// assert_eq!(nearest("tabel2", ["table1", "table2", "figure3"]), Some("table2"));
/// assert_eq!(nearest("lr", ["seed", "model"]), None);
/// ```
pub fn nearest<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let known = names.into_iter().map(|name| (strsim::damerau_levenshtein(name, given), name));
    let (distance, name) = known.min()?;
    // A short word resembles everything.
    (distance <= 3.min(given.chars().count() / 3)).then_some(name)
}
