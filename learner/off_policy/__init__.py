"""Off-policy evaluation: what a candidate would have earned, estimated from turns of another policy.

Every logged turn is one decision: the whole answer, given the prompt. The estimate is the mean reward of the
candidate's answers in the situations that the logged policy got into; it does not include that a better answer would
have led a session elsewhere, which only the canary shows. Turns that the candidate was trained on make it look better
than it is: keep some users' turns out of training for this."""
