;; A discovery handler as text. What a test changes stands between @ signs: how `describe`, `validate` and `discover` go, and data.
;; What it talks to the network with is in network.wat, between the same signs.
;; Memory: 64 the description, 128 a good result of validate, 256 an answer, 512 a device, 640 a wake, 704 results of calls,
;; 960 streams, 1024 texts, 1152 names, 2048 a datagram.
(component
  (import "leafhost:log/log@0.1.0" (instance $log
    (type $level' (enum "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (export "write" (func (param "level" $level) (param "message" string)))))
  (import "leafhost:explain/explain@0.1.0" (instance $explain
    (export "skipped" (func (param "subject" string) (param "rule" string) (param "reason" string)))))

  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $pollable (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $outer))
    (export "pollable" (type $pollable (eq $outer)))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
@network-imports@
  (type $description' (record (field "name" string) (field "version" string) (field "summary" string)
    (field "example" string) (field "shared" bool)))
  (export $description "description" (type $description'))
  (type $problem' (record (field "path" string) (field "message" string)))
  (export $problem "problem" (type $problem'))
  (type $property' (record (field "name" string) (field "value" (option (list u8))) (field "secret" bool)))
  (export $property "property" (type $property'))
  (type $field' (enum "attr" "attrs" "devpath" "driver" "drivers" "kernel" "kernels" "env" "subsystem" "subsystems"
    "tag" "tags"))
  (export $field "field" (type $field'))
  (type $term' (record (field "field" $field) (field "key" (option string)) (field "negated" bool) (field "value" string)))
  (export $term "term" (type $term'))
  (type $udev-event' (record (field "action" string) (field "devpath" string) (field "subsystem" (option string))
    (field "devnode" (option string))))
  (export $udev-event "udev-event" (type $udev-event'))
  (type $datagram' (record (field "group" string) (field "port" u16) (field "source" string) (field "interface" u32)
    (field "payload" (list u8))))
  (export $datagram "datagram" (type $datagram'))
  (type $event' (variant (case "first") (case "changed") (case "timer") (case "udev" $udev-event) (case "network")
    (case "multicast" $datagram)))
  (export $event "event" (type $event'))
  (type $budget' (record (field "wall-ms" u32) (field "cpu-ms" u32) (field "memory-bytes" u64) (field "devices" u32)
    (field "answer-bytes" u32)))
  (export $budget "budget" (type $budget'))
  (type $request' (record (field "node" string) (field "configuration" string) (field "details" string)
    (field "properties" (list $property)) (field "events" (list $event)) (field "events-lost" bool)
    (field "budget" $budget) (field "cursor" (option (list u8)))))
  (export $request "request" (type $request'))
  (type $mount' (record (field "container-path" string) (field "host-path" string) (field "read-only" bool)))
  (export $mount "mount" (type $mount'))
  (type $device-node' (record (field "container-path" string) (field "host-path" string) (field "permissions" string)))
  (export $device-node "device-node" (type $device-node'))
  (type $attribute-value' (variant (case "text" string) (case "integer" s64) (case "boolean" bool) (case "version" string)))
  (export $attribute-value "attribute-value" (type $attribute-value'))
  (type $attribute' (record (field "name" string) (field "value" $attribute-value)))
  (export $attribute "attribute" (type $attribute'))
  (type $health' (variant (case "healthy") (case "unhealthy" string) (case "unknown")))
  (export $health "health" (type $health'))
  (type $device' (record (field "id" string) (field "shared" (option bool)) (field "physical-id" (option string))
    (field "properties" (list (tuple string string))) (field "mounts" (list $mount))
    (field "device-nodes" (list $device-node)) (field "attributes" (list $attribute))
    (field "capacity" (list (tuple string string))) (field "health" $health)))
  (export $device "device" (type $device'))
  (type $devices' (variant (case "unchanged") (case "complete" (list $device)) (case "partial" (list $device))))
  (export $devices "devices" (type $devices'))
  (type $multicast-filter' (record (field "group" string) (field "port" u16) (field "contains" (list (list u8)))))
  (export $multicast-filter "multicast-filter" (type $multicast-filter'))
  (type $wake' (variant (case "after" u32) (case "udev" (list $term)) (case "network")
    (case "multicast" $multicast-filter)))
  (export $wake "wake" (type $wake'))
  (type $discovery' (record (field "devices" $devices) (field "departed" (list string)) (field "wake" (list $wake))
    (field "cursor" (option (list u8)))))
  (export $discovery "discovery" (type $discovery'))
  (type $discovery-error' (variant (case "invalid-details" (list $problem)) (case "unavailable" string)))
  (export $discovery-error "discovery-error" (type $discovery-error'))

  (core module $memory
    (memory (export "memory") 2)
    (global $top (mut i32) (i32.const 65536))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
      (global.set $top (i32.add (local.get $at) (local.get 3)))
      (local.get $at)))
  (core instance $m (instantiate $memory))
  (core func $write (canon lower (func $log "write") (memory (core memory $m "memory"))))
  (core func $skipped (canon lower (func $explain "skipped") (memory (core memory $m "memory"))))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core func $after (canon lower (func $clock "subscribe-duration")))
@network-lowered@
  (core module $guest
    (import "host" "memory" (memory 2))
    (import "host" "write" (func $write (param i32 i32 i32)))
    (import "host" "skipped" (func $skipped (param i32 i32 i32 i32 i32 i32)))
    (import "host" "block" (func $block (param i32)))
    (import "host" "after" (func $after (param i64) (result i32)))
@network-core@
    ;; name, version, summary, example
    (data (i32.const 64) "\00\04\00\00\07\00\00\00\08\04\00\00\03\00\00\00\0b\04\00\00\00\00\00\00\0b\04\00\00\00\00\00\00\01")
    ;; ok(complete([device at 512]), no departed, [wake at 640], cursor "c")
    (data (i32.const 256) "\00\00\00\00\01\00\00\00\00\02\00\00\01\00\00\00\00\00\00\00\00\00\00\00\80\02\00\00\01\00\00\00\01\00\00\00\0b\04\00\00\01\00\00\00")
    ;; the device "dev-1"
    (data (i32.const 512) "\10\04\00\00\05\00\00\00")
    ;; after 2,000 ms
    (data (i32.const 640) "\00\00\00\00\d0\07\00\00")
    (data (i32.const 1024) "textual-1.2c....dev-1")
    @data@
@network-functions@
    (func (export "describe") (result i32) @describe@)
    (func (export "validate") (param i32 i32) (result i32) @validate@)
    (func $discover (export "discover") (param i32) (result i32) @discover@))
  (core instance $g (instantiate $guest (with "host" (instance
    (export "memory" (memory $m "memory"))
    (export "write" (func $write))
    (export "skipped" (func $skipped))
    (export "block" (func $block))
    (export "after" (func $after))
@network-given@
  ))))

  (func $describe (result $description)
    (canon lift (core func $g "describe") (memory (core memory $m "memory")) (realloc (core func $m "realloc"))))
  (func $validate (param "details" string) (result (result (error (list $problem))))
    (canon lift (core func $g "validate") (memory (core memory $m "memory")) (realloc (core func $m "realloc"))))
  (func $discover (param "request" $request) (result (result $discovery (error $discovery-error)))
    (canon lift (core func $g "discover") (memory (core memory $m "memory")) (realloc (core func $m "realloc"))))
  (instance $handler
    (export "describe" (func $describe))
    (export "validate" (func $validate))
    (export "discover" (func $discover)))
  (export "leafhost:discovery/handler@0.1.0" (instance $handler)))
