#include "textflag.h"

DATA quotes<>+0(SB)/8, $0x2222222222222222
GLOBL quotes<>(SB), RODATA|NOPTR, $8
DATA backslashes<>+0(SB)/8, $0x5c5c5c5c5c5c5c5c
GLOBL backslashes<>(SB), RODATA|NOPTR, $8
DATA controls<>+0(SB)/8, $0x1f1f1f1f1f1f1f1f
GLOBL controls<>(SB), RODATA|NOPTR, $8
DATA lower<>+0(SB)/8, $0x2020202020202020
GLOBL lower<>(SB), RODATA|NOPTR, $8
DATA opening<>+0(SB)/8, $0x7b7b7b7b7b7b7b7b
GLOBL opening<>(SB), RODATA|NOPTR, $8
DATA closing<>+0(SB)/8, $0x7d7d7d7d7d7d7d7d
GLOBL closing<>(SB), RODATA|NOPTR, $8

// func plainBlocks(b []byte) (n int, wide bool)
TEXT ·plainBlocks(SB), NOSPLIT, $0-33
	MOVQ b_base+0(FP), SI
	MOVQ b_len+8(FP), CX
	XORQ AX, AX
	VPBROADCASTQ quotes<>(SB), Y0
	VPBROADCASTQ backslashes<>(SB), Y1
	VPBROADCASTQ controls<>(SB), Y2
	VPXOR Y3, Y3, Y3 // all bytes that were passed, or-ed
	SUBQ $64, CX

plain:
	CMPQ AX, CX
	JGT plainEnd
	VMOVDQU (SI)(AX*1), Y4
	VMOVDQU 32(SI)(AX*1), Y5
	VPMINUB Y2, Y4, Y6
	VPMINUB Y2, Y5, Y7
	VPCMPEQB Y4, Y6, Y6
	VPCMPEQB Y5, Y7, Y7
	VPCMPEQB Y0, Y4, Y8
	VPCMPEQB Y0, Y5, Y9
	VPCMPEQB Y1, Y4, Y10
	VPCMPEQB Y1, Y5, Y11
	VPOR Y6, Y7, Y6
	VPOR Y8, Y9, Y8
	VPOR Y10, Y11, Y10
	VPOR Y6, Y8, Y6
	VPOR Y6, Y10, Y6
	VPTEST Y6, Y6
	JNZ plainEnd
	VPOR Y4, Y3, Y3
	VPOR Y5, Y3, Y3
	ADDQ $64, AX
	JMP plain

plainEnd:
	VPMOVMSKB Y3, DX
	TESTL DX, DX
	SETNE wide+32(FP)
	MOVQ AX, n+24(FP)
	VZEROUPPER
	RET

// func unbracketedBlocks(b []byte) int
TEXT ·unbracketedBlocks(SB), NOSPLIT, $0-32
	MOVQ b_base+0(FP), SI
	MOVQ b_len+8(FP), CX
	XORQ AX, AX
	VPBROADCASTQ lower<>(SB), Y0
	VPBROADCASTQ opening<>(SB), Y1
	VPBROADCASTQ closing<>(SB), Y2
	VPBROADCASTQ backslashes<>(SB), Y3
	SUBQ $64, CX

bracket:
	CMPQ AX, CX
	JGT bracketEnd
	VMOVDQU (SI)(AX*1), Y4
	VMOVDQU 32(SI)(AX*1), Y5
	VPOR Y0, Y4, Y6
	VPOR Y0, Y5, Y7
	VPCMPEQB Y3, Y4, Y4
	VPCMPEQB Y3, Y5, Y5
	VPCMPEQB Y1, Y6, Y8
	VPCMPEQB Y1, Y7, Y9
	VPCMPEQB Y2, Y6, Y6
	VPCMPEQB Y2, Y7, Y7
	VPOR Y4, Y5, Y4
	VPOR Y8, Y9, Y8
	VPOR Y6, Y7, Y6
	VPOR Y4, Y8, Y4
	VPOR Y4, Y6, Y4
	VPTEST Y4, Y4
	JNZ bracketEnd
	ADDQ $64, AX
	JMP bracket

bracketEnd:
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET
