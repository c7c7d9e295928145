"""The endpoint picker protocol as a whole: its rules, and traffic through real gateways.

``test_protocol_rules`` has the rules of GIE proposal 004 that bind an endpoint picker, E1 to E11, a
test for each. The other modules have the cases that the conformance suite of the Gateway API
Inference Extension runs on a cluster, and those its picker's tests add, here with a real Envoy,
endpoint pickers in the test's process and echo servers for pods. Each test is named after its case.
"""
