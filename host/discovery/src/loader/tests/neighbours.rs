//! Effects of one handler file on the others.

use super::*;

#[tokio::test(start_paused = true)]
async fn handlers_that_are_slow_to_load_hold_up_no_others() {
    let mut files: Vec<_> = (0..12)
        .map(|n| file(&format!("a{n:02}.wasm"), &format!("slow{n}@1")))
        .collect();
    files.extend((0..5).map(|n| file(&format!("z{n}.wasm"), &format!("good{n}@1"))));
    let begun = Instant::now();
    let bench = start(Files::new(&files));
    wait_for(&bench.handlers, |set| {
        let good = set.sources.iter().filter(|(name, _)| name.starts_with('z'));
        good.filter(|(_, one)| one.handler.is_some()).count() == 5
    })
    .await;
    // One after the other, the slow ones would have taken half a minute.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    let set = wait_for(&bench.handlers, |set| set.complete).await;
    assert_eq!(set.sources.len(), 17);
    assert!(bench.loader.running.lock().unwrap().1 <= MOST_AT_ONCE);
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_of_a_config_map_inherits_no_name_also_after_a_restart() {
    let (owner, second) = (file("z.wasm", "udev@1"), file("a.wasm", "udev@2"));
    let of_object = |files: &[SourceFile]| {
        let mut set = SourceSet {
            complete: true,
            ..SourceSet::default()
        };
        for file in files {
            set.files.insert(file.name.clone(), Some(version(file)));
            let object = ObjectName {
                namespace: "leafhost".into(),
                name: format!("map-of-{}", file.name),
                uid: "u".into(),
            };
            set.objects.insert(file.name.clone(), object);
        }
        Arc::new(set)
    };
    let put = |files: &Files, there: &[SourceFile]| {
        *files.there.lock().unwrap() = there.to_vec();
        files.set.send_replace(of_object(there));
    };
    let trusts = |source: &'static str, is_there| {
        move |set: &Arc<HandlerSet>| {
            let trusted = set.trusted.get("udev");
            trusted.is_some_and(|one| one.source == source && one.is_there == is_there)
        }
    };
    let files = Files::new(&[]);
    put(&files, std::slice::from_ref(&owner));
    let bench = start(files);
    wait_for(&bench.handlers, trusts("z.wasm", true)).await;
    put(&bench.files, &[owner.clone(), second.clone()]);
    bench.serves(&["a.wasm: udev@2", "z.wasm: udev@1"]).await;
    put(&bench.files, std::slice::from_ref(&second));
    wait_for(&bench.handlers, trusts("z.wasm", false)).await;
    let (kept, accepted) = (
        bench.files.owners.lock().unwrap().clone(),
        bench.files.accepted.lock().unwrap().clone(),
    );
    bench.end().await;
    let files = Files::new(&[]);
    *files.owners.lock().unwrap() = kept;
    *files.accepted.lock().unwrap() = accepted;
    put(&files, std::slice::from_ref(&second));
    let bench = start(files);
    bench.serves(&["a.wasm: udev@2"]).await;
    wait_for(&bench.handlers, trusts("z.wasm", false)).await;
    put(&bench.files, &[owner, second]);
    wait_for(&bench.handlers, trusts("z.wasm", true)).await;
    bench.end().await;
}
