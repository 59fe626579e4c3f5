// Package devices finds a machine's devices: its GPUs with their memory, and its NPUs. It asks llama-server, whose
// answer has one format for all kinds of GPU, else nvidia-smi, else it reads the system's files. It changes nothing,
// and a program that hangs or prints garbage costs no more than its time limit.
package devices
