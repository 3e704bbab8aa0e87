/* The sections of operators.c, each a file. */
#ifndef ATTNOPS_EXAMPLES_CPP_OPERATORS_H_
#define ATTNOPS_EXAMPLES_CPP_OPERATORS_H_

void linear_attentions(void);
void position_encodings(void);
void tensor_product_attention(void);

#endif /* ATTNOPS_EXAMPLES_CPP_OPERATORS_H_ */
