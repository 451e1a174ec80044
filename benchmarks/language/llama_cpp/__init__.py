"""Speed of text generation beside llama.cpp, with a model of equal size, on one core.

rival     the process of llama.cpp, which runs in another environment
compare   alternating measurements of both, and the command
"""
