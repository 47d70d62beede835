//! What is listed, as tables, and against a kubelet whose messages take their time.
