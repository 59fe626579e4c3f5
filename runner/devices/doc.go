// Package devices finds out what a machine has: its GPUs with their memory, and its NPUs. It asks llama-server, whose
// answer has one form for all kinds of GPU, else nvidia-smi, else it reads the system's files. It changes nothing, and a
// program that hangs or prints garbage costs its time limit and no more.
package devices
