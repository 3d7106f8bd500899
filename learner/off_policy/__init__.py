"""What a candidate would have earned, told from turns that another policy spoke.

Every logged turn is one decision: the whole answer, given the prompt. What is estimated is the mean reward of the
candidate's answers in the situations that the logged policy came into; that a better answer would have led a session
elsewhere is not in it, and only the canary sees that. Turns that the candidate was trained on make it look better than
it is: keep some users' apart for this.
"""
